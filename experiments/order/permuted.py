"""How far the outputs of an encoder move when tokens change places: "dog bites man", "man bites dog".

Without positions, self-attention is equivariant to permutations of its input (Vaswani et al. 2017, section 3.5): every
token keeps its output, up to rounding, wherever it stands.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.typing import Params

Order = Callable[[int, np.random.Generator], np.ndarray]


def shuffled(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the places of `count` tokens in random order."""
    return rng.permutation(count)


def first_and_third_swapped(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the places of `count` tokens, with the first and the third exchanged."""
    order = np.arange(count)
    order[[0, 2]] = order[[2, 0]]
    return order


def orders(mask: np.ndarray, order: Order, rng: np.random.Generator) -> np.ndarray:
    """Return the old place of the token at every place, int32 [B, S]; eos and padding stay.

    mask: [B, S], True where there is a token; every row has three tokens or more before its eos.
    """
    places = np.tile(np.arange(mask.shape[1], dtype=np.int32), (len(mask), 1))
    for row, length in zip(places, mask.sum(1), strict=True):
        row[: length - 1] = order(length - 1, rng)
    return places


def encoder_outputs(model: ModelConfig, params: Params, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the outputs of the encoder, float32 [B, S, D], of an encoder-decoder or a recurrent model."""
    return np.asarray(_encoder(model)(params, {name: batch[name] for name in ("inputs", "inputs_mask")}))


@functools.lru_cache(maxsize=1)
def _encoder(model: ModelConfig) -> Callable[[Params, Mapping[str, np.ndarray]], Any]:
    import jax

    from transformer_jax.models.architecture import ARCHITECTURES

    module: Any = ARCHITECTURES[model.architecture].module(model)
    return jax.jit(lambda params, batch: module.apply({"params": params}, batch, method="encode").x)


def distances(before: np.ndarray, after: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return |y' - y| / |y| for the outputs y and y' of the same token before and after, [B, S].

    Args:
      before, after: outputs [B, S, D] of a sentence and of the same sentence in another order.
      places: old place of the token at every place of the second sentence, [B, S].
    """
    old = np.take_along_axis(before, places[..., None], axis=1)
    return _relative(after - old, old)


def distances_to_next(outputs: np.ndarray) -> np.ndarray:
    """Return |y_next - y| / |y| for the outputs y of every token and y_next of the token after it, [B, S - 1]."""
    return _relative(np.diff(outputs, axis=1), outputs[:, :-1])


def _relative(differences: np.ndarray, to: np.ndarray) -> np.ndarray:
    """Return |difference| / |to|; NaN at padding, where a recurrent model has zeros."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.linalg.norm(differences, axis=-1) / np.linalg.norm(to, axis=-1)


def mean_distances(scorer: Scorer, params: Params, split: str = "test") -> dict[str, float]:
    """Return the mean distances over the tokens of a split without end-of-sequence, of sentences with three or more.

    Returns: `shuffled/distance`, all tokens in random order; `swapped/distance`, the first and the third token in each
      other's place; `swapped/unmoved_distance`, of the tokens between and after them, which keep their places; for
      scale `neighbours/distance`, of two different tokens that stand side by side in one sentence.
    """
    config, rng = scorer.loaded.config, np.random.default_rng(scorer.loaded.config.seed)
    found: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    for batch in _batches(scorer, split):
        mask = batch["inputs_mask"]
        is_word = np.arange(mask.shape[1]) < mask.sum(1, keepdims=True) - 1
        before = encoder_outputs(config.model, params, batch)
        differ = is_word[:, 1:] & (batch["inputs"][:, 1:] != batch["inputs"][:, :-1])
        found["neighbours/distance"].append(distances_to_next(before)[differ])
        for name, order in (("shuffled", shuffled), ("swapped", first_and_third_swapped)):
            places = orders(mask, order, rng)
            moved = batch | {"inputs": np.take_along_axis(batch["inputs"], places, axis=1)}
            of_tokens = distances(before, encoder_outputs(config.model, params, moved), places)
            found[f"{name}/distance"].append(of_tokens[is_word])
            if name == "swapped":
                unmoved = is_word & (places == np.arange(mask.shape[1])) & (batch["inputs"] == moved["inputs"])
                found["swapped/unmoved_distance"].append(of_tokens[unmoved])
    return {name: float(np.concatenate(values).mean()) for name, values in found.items()}


def _batches(scorer: Scorer, split: str) -> Iterator[dict[str, np.ndarray]]:
    """Yield the batches of a split, without sentences of fewer than three tokens."""
    from transformer_jax.tasks.batches.of_split import evaluation_batches

    for batch, _ in evaluation_batches(scorer.loaded.config, scorer.evaluator.data.splits[split]):
        keep = batch["inputs_mask"].sum(1) > 3
        if keep.any():
            yield {name: np.asarray(values)[keep] for name, values in batch.items()}
