"""RoBERTa (Liu et al. 2019): BERT's stack, with two rows of positions that nothing reads, and heads of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

from transformer_jax.config import ModelConfig
from transformer_jax.convert import bert
from transformer_jax.convert.layouts import LINEAR, VECTOR, Layout
from transformer_jax.convert.tables import Key, Tensor, linear, norm

_PADDING = 1
_BEFORE = _PADDING + 1
"""Padding has the position of its id, and the first token of a text the next one."""


def _adapt(values: dict[str, Any]) -> list[str]:
    """Leave the rows of positions before the first token out of their number; return what is wrong with it."""
    rows = values.get("max_position_embeddings", 512)
    if type(rows) is not int or rows <= _BEFORE:
        return [f"max_position_embeddings={rows!r}: expected an integer above {_BEFORE}"]
    values["max_position_embeddings"] = rows - _BEFORE
    return []


def _also_written(config: ModelConfig) -> dict[str, Any]:
    return {"max_position_embeddings": config.max_length + _BEFORE}


_OWN_KEYS = {
    "vocab_size": Key("vocab_size", "vocab_size", 50_265),
    # Their head for masked words always has gelu, and ours the activation of the model.
    "hidden_act": Key("hidden_act", "activation", "gelu", {"gelu": "gelu"}),
}
MASKED_LM = dataclasses.replace(
    bert.MASKED_LM,
    name="roberta",
    label="RoBERTa",
    class_name="RobertaForMaskedLM",
    also=(),
    keys=tuple(_OWN_KEYS.get(key.theirs, key) for key in bert.MASKED_LM.keys),
    tensors=(
        *bert.stack("roberta.", Layout(transposed=False, skipped=_BEFORE)),
        *linear("lm_head.dense", "head/transform", LINEAR),
        *norm("lm_head.layer_norm", "head/norm"),
        Tensor("lm_head.bias", ("head/output/bias",), VECTOR),
    ),
    required={**bert.MASKED_LM.required, "pad_token_id": (_PADDING,)},
    because={**bert.MASKED_LM.because, "pad_token_id": "positions are counted from it on"},
    ignored={**bert.MASKED_LM.ignored, "bos_token_id": "the tokenizer has the start of a text"},
    copies={
        "lm_head.decoder.weight": ("roberta.embeddings.word_embeddings.weight",),
        "lm_head.decoder.bias": ("lm_head.bias",),
    },
    computed={
        r"roberta\.embeddings\.(position_ids|token_type_ids)": "numbers of positions, which are computed",
        r"roberta\.pooler\.dense\.(weight|bias)": "of a head that this class does not have",
    },
    prefix="roberta.",
    renamed=(),
    adapt=_adapt,
    also_written=_also_written,
)

ROBERTA_CLASSES = bert.classes(
    MASKED_LM,
    "Roberta",
    (*linear("classifier.dense", "head/pooler", LINEAR), *linear("classifier.out_proj", "head/output", LINEAR)),
    pooled_as=linear("roberta.pooler.dense", "head/pooler", LINEAR),
)
