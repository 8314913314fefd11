"""How far the outputs of an encoder move when the words of a sentence change places: "dog bites man", "man bites dog".

Without positions, self-attention is equivariant to permutations of its input (Vaswani et al. 2017, section 3.5): every
word keeps its output, up to rounding, wherever it stands.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.evaluation.run import Scorer
from transformer_jax.typing import Params

Order = Callable[[int, np.random.Generator], np.ndarray]


def shuffled(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers of the words in random order."""
    return rng.permutation(count)


def first_and_third_swapped(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers of the words, the first and the third in each other's place."""
    order = np.arange(count)
    order[[0, 2]] = order[[2, 0]]
    return order


def orders(mask: np.ndarray, order: Order, rng: np.random.Generator) -> np.ndarray:
    """Return the old place of the token at every place, int32 [B, S]; eos and padding stay.

    mask: [B, S], True where there is a token; every row has three words or more before its eos.
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

    module = ARCHITECTURES[model.architecture].module(model)
    return jax.jit(lambda params, batch: module.apply({"params": params}, batch, method="encode").x)


def distances(before: np.ndarray, after: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return how far the output of each word has moved, relative to its length, [B, S]; of padding, anything.

    before, after: outputs [B, S, D] of a sentence and of the same sentence in another order.
    places: old place of the token at every place of the second sentence, [B, S].
    """
    old = np.take_along_axis(before, places[..., None], axis=1)
    tiny = np.finfo(np.float32).tiny  # a recurrent model's output of padding is 0
    return np.linalg.norm(after - old, axis=-1) / np.maximum(np.linalg.norm(old, axis=-1), tiny)


def mean_distances(scorer: Scorer, params: Params, split: str = "test") -> dict[str, float]:
    """Return the mean distances over the words of a split, for sentences of three words or more.

    Returns: `shuffled/distance`, all words in random order; `swapped/distance`, the first and the third word in each
      other's place; `swapped/unmoved_distance`, of the words between and after them, which keep their places.
    """
    config, rng = scorer.loaded.config, np.random.default_rng(scorer.loaded.config.seed)
    found: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    for batch in _batches(scorer, split):
        mask = batch["inputs_mask"]
        is_word = np.arange(mask.shape[1]) < mask.sum(1, keepdims=True) - 1
        before = encoder_outputs(config.model, params, batch)
        for name, order in (("shuffled", shuffled), ("swapped", first_and_third_swapped)):
            places = orders(mask, order, rng)
            moved = batch | {"inputs": np.take_along_axis(batch["inputs"], places, axis=1)}
            of_words = distances(before, encoder_outputs(config.model, params, moved), places)
            found[f"{name}/distance"].append(of_words[is_word])
            if name == "swapped":
                unmoved = is_word & (places == np.arange(mask.shape[1])) & (batch["inputs"] == moved["inputs"])
                found["swapped/unmoved_distance"].append(of_words[unmoved])
    return {name: float(np.concatenate(values).mean()) for name, values in found.items()}


def _batches(scorer: Scorer, split: str) -> Iterator[dict[str, np.ndarray]]:
    """Yield the batches of a split, without sentences of fewer than three words."""
    from transformer_jax.tasks.batches import evaluation_batches

    for batch, _ in evaluation_batches(scorer.loaded.config, scorer.evaluator.data.splits[split]):
        keep = batch["inputs_mask"].sum(1) > 3
        if keep.any():
            yield {name: np.asarray(values)[keep] for name, values in batch.items()}
