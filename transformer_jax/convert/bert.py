"""BERT (Devlin et al. 2019): the table of its stack, and one for the head of each class of transformers."""

from __future__ import annotations

import dataclasses

from transformer_jax.convert.layouts import HEADS_OUT, LINEAR, TABLE, VECTOR
from transformer_jax.convert.tables import ACTIVATIONS, OWN_HEADS, Family, Key, Tensor, linear, norm


def _stack() -> tuple[Tensor, ...]:
    theirs, ours = "bert.encoder.layer.{layer}", "encoder/layers"
    names, attention = "bert.embeddings", f"{ours}/self_attention"
    return (
        Tensor(f"{names}.word_embeddings.weight", ("embedding/embedding",), TABLE),
        Tensor(f"{names}.position_embeddings.weight", ("encoder/position_embedding/learned/embedding",), TABLE),
        Tensor(f"{names}.token_type_embeddings.weight", ("encoder/type_embedding/embedding",), TABLE),
        *norm(f"{names}.LayerNorm", "encoder/embedding_norm"),
        *(
            tensor
            for name in ("query", "key", "value")
            for tensor in linear(f"{theirs}.attention.self.{name}", f"{attention}/{name}", LINEAR)
        ),
        *linear(f"{theirs}.attention.output.dense", f"{attention}/out", HEADS_OUT),
        *norm(f"{theirs}.attention.output.LayerNorm", f"{ours}/self_attention_residual/norm"),
        *linear(f"{theirs}.intermediate.dense", f"{ours}/feed_forward/hidden", LINEAR),
        *linear(f"{theirs}.output.dense", f"{ours}/feed_forward/out", LINEAR),
        *norm(f"{theirs}.output.LayerNorm", f"{ours}/feed_forward_residual/norm"),
    )


_FIXED = {
    **{"architecture": "encoder_only", "norm_position": "post", "norm": "layernorm", "position_encoding": "learned"},
    **{"use_bias": True, "attention_scale": True, "scale_embeddings": False, "embedding_norm": True},
    **OWN_HEADS,
    "token_types": lambda config: max(config.token_types, 1),
}
_UNUSED_POOLER = {r"bert\.pooler\.dense\.(weight|bias)": "of a head that this class does not have"}

MASKED_LM = Family(
    name="bert",
    label="BERT",
    class_name="BertForMaskedLM",
    also=("BertForPreTraining",),
    architecture="encoder_only",
    tasks=("masked_lm",),
    init="plain_normal",
    keys=(
        Key("vocab_size", "vocab_size", 30_522),
        Key("max_position_embeddings", "max_length", 512),
        Key("hidden_size", "emb_dim", 768),
        Key("num_hidden_layers", "num_encoder_layers", 12),
        Key("num_attention_heads", "num_heads", 12),
        Key("intermediate_size", "mlp_dim", 3072),
        Key("type_vocab_size", "token_types", 2),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        Key("layer_norm_eps", "norm_epsilon", 1e-12),
        Key("hidden_dropout_prob", "dropout_rate", 0.1),
        Key("attention_probs_dropout_prob", "attention_dropout_rate", 0.1),
        Key("initializer_range", "init_std", 0.02),
    ),
    tensors=(
        *_stack(),
        *linear("cls.predictions.transform.dense", "head/transform", LINEAR),
        *norm("cls.predictions.transform.LayerNorm", "head/norm"),
        Tensor("cls.predictions.bias", ("head/output/bias",), VECTOR),
    ),
    fixed={**_FIXED, "tie_output": True, "output_bias": True, "scale_logits": False},
    required={
        **{"position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False,)},
        "tie_word_embeddings": (True,),
    },
    because={"position_embedding_type": "transformers 5 has no such positions either"},
    ignored={
        "classifier_dropout": "of a head for labels, which this class does not have",
        "bos_token_id": "BERT has no begin-of-sequence",
        "embedding_size": "only loosens a check",
    },
    copies={
        "cls.predictions.decoder.weight": ("bert.embeddings.word_embeddings.weight",),
        "cls.predictions.decoder.bias": ("cls.predictions.bias",),
    },
    computed={
        r"bert\.embeddings\.(position_ids|token_type_ids)": "numbers of positions, which are computed",
        r"cls\.seq_relationship\.(weight|bias)": "the head for the next sentence, which transformer_jax does not have",
        **_UNUSED_POOLER,
    },
    prefix="bert.",
    renamed=((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")),
)  # fmt: skip


_TIED = "tie_word_embeddings"

_HEAD_DROPOUT = Key("classifier_dropout", "head_dropout_rate", None)
"""None there means `hidden_dropout_prob`, as None here means `dropout_rate`."""


def _with_head(class_name: str, task: str, tensors: tuple[Tensor, ...], pooled: bool = False) -> Family:
    has_labels = task != "span_qa"
    computed = {name: reason for name, reason in MASKED_LM.computed.items() if name.startswith("bert")}
    if pooled:
        computed = {name: reason for name, reason in computed.items() if name not in _UNUSED_POOLER}
    return dataclasses.replace(
        MASKED_LM,
        label=class_name,
        class_name=class_name,
        also=(),
        tasks=(task,),
        task_fields={"pooling": "first", "pooler": True} if pooled else {},
        has_labels=has_labels,
        keys=(*MASKED_LM.keys, *([_HEAD_DROPOUT] if has_labels else [])),
        ignored={
            **{
                name: reason
                for name, reason in MASKED_LM.ignored.items()
                if not (has_labels and name == _HEAD_DROPOUT.theirs)
            },
            _TIED: "of the head for masked words, which this class does not have",
        },
        notes={_TIED: True},
        required={name: values for name, values in MASKED_LM.required.items() if name != _TIED},
        tensors=(*_stack(), *tensors),
        fixed=_FIXED,
        copies={},
        computed=computed,
    )


SEQUENCE_CLASSIFICATION = _with_head(
    "BertForSequenceClassification",
    "classification",
    (*linear("bert.pooler.dense", "head/pooler", LINEAR), *linear("classifier", "head/output", LINEAR)),
    pooled=True,
)

MODEL = dataclasses.replace(
    SEQUENCE_CLASSIFICATION,
    label="BertModel",
    class_name="BertModel",
    tensors=(*_stack(), *linear("bert.pooler.dense", "head/pooler", LINEAR)),
    lacks=("head/output/kernel", "head/output/bias"),
    bare=True,
    read_only=True,
)
"""The encoder with its pooler, which is that of our head; the map to labels begins anew, as zeros."""

MODEL_WITHOUT_POOLER = dataclasses.replace(MODEL, tensors=_stack(), task_fields={"pooling": "mean", "pooler": False})
"""The encoder alone; the mean of its states is what a new head reads."""

BERT_CLASSES = (
    MASKED_LM,
    SEQUENCE_CLASSIFICATION,
    _with_head("BertForTokenClassification", "tagging", linear("classifier", "head/output", LINEAR)),
    _with_head("BertForQuestionAnswering", "span_qa", linear("qa_outputs", "head/output", LINEAR)),
    MODEL,
    MODEL_WITHOUT_POOLER,
)
