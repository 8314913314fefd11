"""BERT (Devlin et al. 2019): the table of its stack, and one for the head of each class of transformers.

RoBERTa has the same stack under another name, and other heads.
"""

from __future__ import annotations

import dataclasses
import re

from transformer_jax.convert.layouts import HEADS_OUT, LINEAR, TABLE, VECTOR, Layout
from transformer_jax.convert.tables import ACTIVATIONS, OWN_HEADS, Family, Key, Tensor, linear, norm


def stack(prefix: str = "bert.", positions: Layout = TABLE) -> tuple[Tensor, ...]:
    """The embeddings and the layers, under a prefix; positions: the form of the table of positions."""
    theirs, ours = f"{prefix}encoder.layer.{{layer}}", "encoder/layers"
    names, attention = f"{prefix}embeddings", f"{ours}/self_attention"
    return (
        Tensor(f"{names}.word_embeddings.weight", ("embedding/embedding",), TABLE),
        Tensor(f"{names}.position_embeddings.weight", ("encoder/position_embedding/learned/embedding",), positions),
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


FIXED = {
    **{"architecture": "encoder_only", "norm_position": "post", "norm": "layernorm", "position_encoding": "learned"},
    **{"use_bias": True, "attention_scale": True, "scale_embeddings": False, "embedding_norm": True},
    **OWN_HEADS,
    "token_types": lambda config: max(config.token_types, 1),
}
_OF_VOCABULARY = {"tie_output": True, "output_bias": True, "scale_logits": False}

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
        *stack(),
        *linear("cls.predictions.transform.dense", "head/transform", LINEAR),
        *norm("cls.predictions.transform.LayerNorm", "head/norm"),
        Tensor("cls.predictions.bias", ("head/output/bias",), VECTOR),
    ),
    fixed={**FIXED, **_OF_VOCABULARY},
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
        r"bert\.pooler\.dense\.(weight|bias)": "of a head that this class does not have",
    },
    prefix="bert.",
    renamed=((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")),
)  # fmt: skip


_TIED = "tie_word_embeddings"

_HEAD_DROPOUT = Key("classifier_dropout", "head_dropout_rate", None)
"""None there means `hidden_dropout_prob`, as None here means `dropout_rate`."""


def _with_head(
    masked: Family, class_name: str, task: str, tensors: tuple[Tensor, ...], *, pooled: bool = False
) -> Family:
    """Return the table of a class that has a head for a task in place of the one for masked words."""
    has_labels, used = task != "span_qa", {tensor.theirs for tensor in tensors}
    of_stack = tuple(t for t in masked.tensors if t.theirs.startswith(masked.prefix))
    return dataclasses.replace(
        masked,
        label=class_name,
        class_name=class_name,
        also=(),
        tasks=(task,),
        task_fields={"pooling": "first", "pooler": True} if pooled else {},
        has_labels=has_labels,
        keys=(
            *(key._replace(values=ACTIVATIONS) if key.ours == "activation" else key for key in masked.keys),
            *([_HEAD_DROPOUT] if has_labels else []),
        ),
        ignored={
            **{
                name: reason
                for name, reason in masked.ignored.items()
                if not (has_labels and name == _HEAD_DROPOUT.theirs)
            },
            _TIED: "of the head for masked words, which this class does not have",
        },
        notes={_TIED: True},
        required={name: values for name, values in masked.required.items() if name != _TIED},
        tensors=(*of_stack, *tensors),
        fixed={name: value for name, value in masked.fixed.items() if name not in _OF_VOCABULARY},
        copies={},
        computed={
            pattern: reason
            for pattern, reason in masked.computed.items()
            if pattern.startswith(re.escape(masked.prefix)) and not any(re.fullmatch(pattern, name) for name in used)
        },
    )


def classes(
    masked: Family, name: str, of_sequence: tuple[Tensor, ...], *, pooled_as: tuple[Tensor, ...]
) -> tuple[Family, ...]:
    """Return the tables of all classes of a family.

    Args:
      masked: of its class for masked words. name: of its classes, before `For` or `Model`.
      of_sequence: tensors of the head for a text. pooled_as: of the pooler of its base model.
    """
    of_labels = linear("classifier", "head/output", LINEAR)
    sequence = _with_head(masked, f"{name}ForSequenceClassification", "classification", of_sequence, pooled=True)
    base = _with_head(masked, f"{name}Model", "classification", pooled_as, pooled=True)
    model = dataclasses.replace(base, lacks=("head/output/kernel", "head/output/bias"), bare=True, read_only=True)
    of_stack = tuple(t for t in masked.tensors if t.theirs.startswith(masked.prefix))
    return (
        masked,
        sequence,
        _with_head(masked, f"{name}ForTokenClassification", "tagging", of_labels),
        _with_head(masked, f"{name}ForQuestionAnswering", "span_qa", linear("qa_outputs", "head/output", LINEAR)),
        # The encoder with its pooler, which is that of our head; the map to labels begins anew, as zeros.
        model,
        # The encoder alone; the mean of its states is what a new head reads.
        dataclasses.replace(model, tensors=of_stack, task_fields={"pooling": "mean", "pooler": False}),
    )


_POOLER = linear("bert.pooler.dense", "head/pooler", LINEAR)
BERT_CLASSES = classes(
    MASKED_LM,
    "Bert",
    (*_POOLER, *linear("classifier", "head/output", LINEAR)),
    pooled_as=_POOLER,
)
