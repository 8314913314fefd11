"""Attention maps for the tests: random weights, and labels that contain markup."""

from collections.abc import Sequence

import numpy as np

from transformer_jax.inspection.attention import AttentionMaps, Selection

LABELS = ("$x$", "<b>&", "_y^", "</script>", "</s>")


def everything(layers: int, heads: int) -> Selection:
    kinds = ("encoder_self_attention", "decoder_self_attention", "decoder_cross_attention")
    return Selection({kind: list(range(layers)) for kind in kinds}, list(range(heads)))


def make_maps(
    source: int = 5, target: int = 4, layers: int = 2, heads: int = 6, labels: Sequence[str] = LABELS
) -> AttentionMaps:
    rng = np.random.default_rng(0)

    def weights(queries: int, keys: int) -> np.ndarray:
        w = rng.random((layers, heads, queries, keys)).astype(np.float32)
        return w / w.sum(-1, keepdims=True)

    tokens = [labels[i % len(labels)] for i in range(max(source, target))]
    causal = np.tril(weights(target, target))
    return AttentionMaps(
        tokens[:source],
        ["<s>", *tokens[: target - 1]],
        tokens[:target],
        {
            "encoder_self_attention": weights(source, source),
            "decoder_self_attention": causal / causal.sum(-1, keepdims=True),
            "decoder_cross_attention": weights(target, source),
        },
        "text",
        True,
    )
