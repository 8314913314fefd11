"""Attention weights as one self-contained HTML page: it needs no network and no other files."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.host.files import json_text
from transformer_jax.inspection.attention import KINDS, AttentionMaps, Selection
from transformer_jax.readers import read_text

_PLACE = "__DATA__"


def attention_page(maps: AttentionMaps, shown: Selection, about: Mapping[str, str]) -> str:
    """Return the page, on which one can choose attention, layer and head, and read every weight.

    Args:
      about: lines above the picture, as name -> text.
    """
    data = {
        "about": list(about.items()),
        "kinds": [_kind(maps, kind, shown) for kind, layers in shown.layers.items() if layers],
    }
    # HTML interprets `</script>` and `<!--` within a script element, even inside a JSON string.
    written = json_text(data).replace("<", "\\u003c")
    template = read_text(Path(__file__).parent / "page.html")
    before, _, after = template.partition(_PLACE)
    return before + written + after


def _kind(maps: AttentionMaps, kind: str, shown: Selection) -> dict[str, Any]:
    """Return labels and weights of one attention; weights [L, N, T, S] as bytes of little-endian float32 in base64."""
    weights = maps.weights[kind][np.ix_(shown.layers[kind], shown.heads)]
    return {
        "title": KINDS[kind],
        "causal": kind == "decoder_self_attention",
        "layers": shown.layers[kind],
        "heads": shown.heads,
        "rows": maps.queries(kind),
        "columns": maps.keys(kind),
        "weights": base64.b64encode(weights.astype("<f4").tobytes()).decode("ascii"),
    }
