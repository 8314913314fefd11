"""How evenly a model attends, and how much gradient passes through its softmax."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.evaluation.run import Scorer
from transformer_jax.typing import Params


def attention_entropy(scorer: Scorer, params: Params, split: str = "test") -> float:
    """Of the decoder's attention to the source, in nats: the mean over layers, heads and the target tokens of a split.

    No more than ln S where S pieces are attended to; 0 where it is one alone.
    """
    from transformer_jax.inspection.attention import capture, mean_entropy
    from transformer_jax.tasks.batches import evaluation_batches

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
    """Of a model as it is initialised: the Frobenius norm of the gradient of the mean loss with respect to all query
    and key matrices, which reaches them through the softmax alone.

    Args:
      model: resolved. batch: as a translation's training step has it.
      seed: of the parameters.
    """
    return float(_gradient_norm(model)(dict(batch), np.int32(seed)))


@functools.lru_cache(maxsize=4)
def _gradient_norm(model: ModelConfig) -> Any:
    import jax
    import jax.numpy as jnp

    from transformer_jax.models.architecture import init_params
    from transformer_jax.models.encoder_decoder import EncoderDecoder
    from transformer_jax.tasks.losses import cross_entropy

    def norm(batch: Any, seed: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, _ = EncoderDecoder(model).apply({"params": params}, batch)
            sums = cross_entropy(logits, batch["targets"], batch["weights"], None)
            return sums["loss"] / sums["weight"]

        leaves = jax.tree_util.tree_leaves_with_path(jax.grad(loss)(init_params(model, seed)))
        paths = ((jax.tree_util.keystr(path), gradient) for path, gradient in leaves)
        wanted = [g for path, g in paths if path.endswith(("['query']['kernel']", "['key']['kernel']"))]
        return jnp.sqrt(sum(jnp.sum(gradient**2) for gradient in wanted))

    return jax.jit(norm)
