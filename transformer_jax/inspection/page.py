"""Attention weights as one HTML page that needs nothing else: no network, no files beside it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np

from transformer_jax.inspection.attention import KINDS, AttentionMaps, Selection

_PLACE = "__DATA__"


def attention_page(maps: AttentionMaps, shown: Selection, about: Mapping[str, str]) -> str:
    """The page: what is shown can be chosen by attention, layer and head, and every weight be read.

    Args:
      about: what stands above the picture, by name.
    """
    data = {"about": list(about.items()), "kinds": [_kind(maps, kind, shown) for kind in KINDS if shown.layers[kind]]}
    # Within a script element `</script>` and `<!--` are read by HTML, whatever JSON takes them for.
    written = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    template = resources.files("transformer_jax.inspection").joinpath("page.html").read_text(encoding="utf-8")
    before, _, after = template.partition(_PLACE)
    return before + written + after


def _kind(maps: AttentionMaps, kind: str, shown: Selection) -> dict[str, Any]:
    """One attention: labels, and the weights [L, N, T, S] as the bytes of little-endian float32 in base64."""
    weights = maps.weights[kind][np.ix_(shown.layers[kind], shown.heads)]
    return {
        "title": KINDS[kind],
        "causal": kind == "decoder_self_attention",
        "layers": [layer + 1 for layer in shown.layers[kind]],
        "heads": [head + 1 for head in shown.heads],
        "rows": maps.queries(kind),
        "columns": maps.keys(kind),
        "weights": base64.b64encode(weights.astype("<f4").tobytes()).decode("ascii"),
    }
