"""How evenly a model attends, and how much gradient passes through its softmax."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.typing import Params


def attention_entropy(scorer: Scorer, params: Params, split: str = "test") -> float:
    """Return the mean entropy of the decoder's attention to the source, in nats.

    The mean is over layers, heads and the target tokens of a split. The entropy is at most ln S for a source of S
    tokens, and 0 where all weight is on one token.
    """
    from transformer_jax.inspection.attention import capture, mean_entropy
    from transformer_jax.tasks.batches.of_split import evaluation_batches

    config = scorer.loaded.config
    entropies = []
    encoded = scorer.evaluator.data.splits[split]
    limit = min(1024, config.evaluation.tokens_per_batch)
    for batch, _ in evaluation_batches(config, encoded, tokens_per_batch=limit):
        _, weights = capture(config.model, params, batch)
        cross = np.asarray(weights["decoder_cross_attention"])  # [L, B, N, T, S]
        of_tokens = np.moveaxis(cross, 2, 3)[:, np.asarray(batch["weights"]) > 0]  # [L, tokens, N, S]
        entropies.append(mean_entropy(of_tokens).ravel())
    return float(np.concatenate(entropies).mean())


def query_key_gradient_norm(model: ModelConfig, batch: Mapping[str, np.ndarray], seed: int) -> float:
    """Return the gradient norm of all query and key matrices of a freshly initialised model.

    It is the Frobenius norm of the gradient of the mean loss, which reaches these matrices only through the softmax.

    Args:
      model: resolved.
      batch: a training batch of the translation task.
      seed: of the parameters.
    """
    return float(_gradient_norm(model)(dict(batch), np.int32(seed)))


@functools.lru_cache(maxsize=4)
def _gradient_norm(model: ModelConfig) -> Any:
    import jax
    import jax.numpy as jnp

    from transformer_jax.models.architecture import init_params
    from transformer_jax.models.encoder_decoder import EncoderDecoder
    from transformer_jax.tasks.metrics.cross_entropy import cross_entropy

    def norm(batch: Any, seed: Any) -> Any:
        def loss(params: Any) -> Any:
            logits: Any = EncoderDecoder(model).apply({"params": params}, batch)
            sums = cross_entropy(logits, batch["targets"], batch["weights"], None)
            return sums["loss"] / sums["weight"]

        leaves = jax.tree_util.tree_leaves_with_path(jax.grad(loss)(init_params(model, seed)))
        paths = ((jax.tree_util.keystr(path), gradient) for path, gradient in leaves)
        wanted = [g for path, g in paths if path.endswith(("['query']['kernel']", "['key']['kernel']"))]
        return jnp.sqrt(sum(jnp.sum(gradient**2) for gradient in wanted))

    return jax.jit(norm)
