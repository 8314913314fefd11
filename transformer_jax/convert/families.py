"""The families that can be converted, each a table: tensors and config keys of theirs beside parameters and fields.

A new family is a new entry of `FAMILIES`; the engine needs no change. Names of tensors are those that transformers
writes. `{layer}` stands for the number of a layer; our parameters of all layers are stacked on a leading axis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_jax.config import DROPOUT_RATES, ModelConfig
from transformer_jax.convert.layouts import (
    HEADS_OUT,
    HEADS_OUT_TABLE,
    LINEAR,
    ROTARY_LINEAR,
    ROTARY_VECTOR,
    ROW,
    TABLE,
    VECTOR,
    Layout,
)


class Tensor(NamedTuple):
    """One tensor of theirs, or one per layer.

    ours: paths of our parameters; several are joined along the axis of features. when: fields with which the tensor
    exists. width: the axis of each of our arrays, without the one of layers, with the width of the model; None if there
    is none.
    """

    theirs: str
    ours: tuple[str, ...]
    layout: Layout
    width: int | None = None
    when: Mapping[str, Any] = {}


class Key(NamedTuple):
    """One key of config.json and the field of `ModelConfig` with the same meaning.

    default: the value where the key is missing. values: our values by theirs, if they differ. None of theirs means the
    default of our field.
    """

    theirs: str
    ours: str
    default: Any = ...
    values: Mapping[Any, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models; Hugging Face calls it a model type.

    - name: its `model_type`; label: the name in messages; class_name: the class that `architectures` names.
    - architecture, task: of this package.
    - keys, tensors: the table.
    - fixed: the value of every other field that the model's outputs depend on, or a function of the config.
    - required: keys whose value says something that our blocks cannot, with the values that we can read. The first
      value is written.
    - ignored: keys without an effect on the outputs, with the reason.
    - repeats: keys that repeat another key where they are missing.
    - copies: tensors that repeat one of others, the first that exists; not written. computed: tensors without learned
      numbers, as regular expressions with the reason; not written.
    - prefix: beginning of all names but `lm_head.weight` that some files leave out.
    - zeros: tensors that are written as zeros if our model lacks them, with the field that says so.
    - sines_first: whether their sinusoidal positions hold all sines before all cosines.
    - rope: whether the base of rotary positions is a key, in the forms of versions 4 and 5 of transformers.
    """

    name: str
    label: str
    class_name: str
    architecture: str
    task: str
    keys: tuple[Key, ...]
    tensors: tuple[Tensor, ...]
    fixed: Mapping[str, Any]
    required: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)
    repeats: Mapping[str, str] = dataclasses.field(default_factory=dict)
    copies: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    computed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prefix: str = ""
    zeros: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sines_first: bool = False
    rope: bool = False


TRAINING_ONLY = (
    *DROPOUT_RATES,
    *("init", "init_std", "dtype", "scan_layers", "remat", "attention_implementation"),
)
"""Fields on which the numbers that a float32 model returns do not depend; a family may have no key for them."""

_GENERATION = "a setting of generation; here those are the fields of `decode`"
_IDS = "a special id; here the tokenizer has them"
_BOOKKEEPING = "a note about the file"
_LIBRARY = "a setting of the library, not of the model"
COMMON_IGNORED = {
    **dict.fromkeys(("architectures", "transformers_version", "_name_or_path", "model_type"), _BOOKKEEPING),
    **dict.fromkeys(("dtype", "torch_dtype"), "the type of the numbers is read from the tensors"),
    **dict.fromkeys(
        ("use_cache", "output_attentions", "output_hidden_states", "return_dict", "torchscript",
         "gradient_checkpointing", "chunk_size_feed_forward", "attn_implementation", "_attn_implementation"), _LIBRARY
    ),
    **dict.fromkeys(("id2label", "label2id", "num_labels", "problem_type", "task_specific_params"), "of another head"),
    **dict.fromkeys(
        ("max_length", "min_length", "num_beams", "length_penalty", "early_stopping", "do_sample", "temperature",
         "top_k", "top_p", "repetition_penalty", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id",
         "num_return_sequences", "no_repeat_ngram_size"), _GENERATION
    ),
    **dict.fromkeys(("eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id"), _IDS),
}  # fmt: skip
"""Keys that every family may have, with the reason why they are not read."""

_GPT_ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
_OWN_HEADS: dict[str, Callable[[ModelConfig], Any]] = {
    "head_dim": lambda config: config.emb_dim // config.num_heads,
    "value_head_dim": lambda config: config.head_dim,
}
_PLAIN: dict[str, Any] = {"scale_logits": False, "embedding_norm": False, "token_types": 0}
_UNTIED = {"tie_output": False}
_BIASED = {"use_bias": True}


def _norm(theirs: str, ours: str, when: Mapping[str, Any] | None = None) -> tuple[Tensor, ...]:
    """Scale and bias of a LayerNorm."""
    return (
        Tensor(f"{theirs}.weight", (f"{ours}/scale",), VECTOR, 0),
        Tensor(f"{theirs}.bias", (f"{ours}/bias",), VECTOR, 0, when or {}),
    )


def _linear(
    theirs: str, ours: str, layout: Layout, widths: tuple[int | None, int | None], bias: Layout = VECTOR
) -> tuple[Tensor, ...]:
    """Weight and bias of a linear map; widths: the axes of kernel and bias with the width of the model."""
    return (
        Tensor(f"{theirs}.weight", (f"{ours}/kernel",), layout, widths[0]),
        Tensor(f"{theirs}.bias", (f"{ours}/bias",), bias, widths[1], _BIASED),
    )


_D = "decoder/layers"


def _gpt2_tensors() -> tuple[Tensor, ...]:
    h, parts = "transformer.h.{layer}", ("query", "key", "value")
    return (
        Tensor("transformer.wte.weight", ("embedding/embedding",), TABLE),
        Tensor("transformer.wpe.weight", ("decoder/position_embedding/learned/embedding",), TABLE),
        *_norm(f"{h}.ln_1", f"{_D}/self_attention_residual/norm"),
        Tensor(f"{h}.attn.c_attn.weight", tuple(f"{_D}/self_attention/{part}/kernel" for part in parts), TABLE),
        Tensor(f"{h}.attn.c_attn.bias", tuple(f"{_D}/self_attention/{part}/bias" for part in parts), VECTOR),
        Tensor(f"{h}.attn.c_proj.weight", (f"{_D}/self_attention/out/kernel",), HEADS_OUT_TABLE),
        Tensor(f"{h}.attn.c_proj.bias", (f"{_D}/self_attention/out/bias",), VECTOR),
        *_norm(f"{h}.ln_2", f"{_D}/feed_forward_residual/norm"),
        Tensor(f"{h}.mlp.c_fc.weight", (f"{_D}/feed_forward/hidden/kernel",), TABLE),
        Tensor(f"{h}.mlp.c_fc.bias", (f"{_D}/feed_forward/hidden/bias",), VECTOR),
        Tensor(f"{h}.mlp.c_proj.weight", (f"{_D}/feed_forward/out/kernel",), TABLE),
        Tensor(f"{h}.mlp.c_proj.bias", (f"{_D}/feed_forward/out/bias",), VECTOR),
        *_norm("transformer.ln_f", "decoder/final_norm"),
        Tensor("lm_head.weight", ("output/kernel",), LINEAR, None, _UNTIED),
    )


GPT2 = Family(
    name="gpt2",
    label="GPT-2",
    class_name="GPT2LMHeadModel",
    architecture="decoder_only",
    task="language_model",
    keys=(
        Key("vocab_size", "vocab_size", 50_257),
        Key("n_positions", "max_length", 1024),
        Key("n_embd", "emb_dim", 768),
        Key("n_layer", "num_decoder_layers", 12),
        Key("n_head", "num_heads", 12),
        Key("n_inner", "mlp_dim", None),
        Key("activation_function", "activation", "gelu_new", _GPT_ACTIVATIONS),
        Key("layer_norm_epsilon", "norm_epsilon", 1e-5),
        Key("resid_pdrop", "dropout_rate", 0.1),
        Key("embd_pdrop", "embedding_dropout_rate", 0.1),
        Key("attn_pdrop", "attention_dropout_rate", 0.1),
        Key("initializer_range", "init_std", 0.02),
        Key("tie_word_embeddings", "tie_output", True),
        Key("scale_attn_weights", "attention_scale", True),
        Key("bos_token_id", "decoder_start_id", 50_256),
    ),
    tensors=_gpt2_tensors(),
    fixed={
        **{"architecture": "decoder_only", "norm_position": "pre", "norm": "layernorm", "use_bias": True},
        **{"position_encoding": "learned", "scale_embeddings": False, "output_bias": False, **_OWN_HEADS, **_PLAIN},
        "num_kv_heads": lambda config: config.num_heads,
    },
    required={"add_cross_attention": (False,), "scale_attn_by_inverse_layer_idx": (False,)},
    ignored={
        **dict.fromkeys(("n_ctx",), "repeats n_positions"),
        "reorder_and_upcast_attn": "changes only the rounding of float16",
        **dict.fromkeys(
            ("summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout",
             "summary_proj_to_labels"),
            "of the head for classification",
        ),
    },
    copies={"lm_head.weight": ("transformer.wte.weight",)},
    computed={r"transformer\.h\.\d+\.attn\.(masked_)?bias": "the causal mask, which is computed"},
    prefix="transformer.",
)  # fmt: skip


def _llama_tensors() -> tuple[Tensor, ...]:
    layer = "model.layers.{layer}"
    return (
        Tensor("model.embed_tokens.weight", ("embedding/embedding",), TABLE),
        Tensor(f"{layer}.input_layernorm.weight", (f"{_D}/self_attention_residual/norm/scale",), VECTOR),
        *_linear(f"{layer}.self_attn.q_proj", f"{_D}/self_attention/query", ROTARY_LINEAR, (None, None), ROTARY_VECTOR),
        *_linear(f"{layer}.self_attn.k_proj", f"{_D}/self_attention/key", ROTARY_LINEAR, (None, None), ROTARY_VECTOR),
        *_linear(f"{layer}.self_attn.v_proj", f"{_D}/self_attention/value", LINEAR, (None, None)),
        *_linear(f"{layer}.self_attn.o_proj", f"{_D}/self_attention/out", HEADS_OUT, (None, None)),
        Tensor(f"{layer}.post_attention_layernorm.weight", (f"{_D}/feed_forward_residual/norm/scale",), VECTOR),
        *_linear(f"{layer}.mlp.gate_proj", f"{_D}/feed_forward/gate", LINEAR, (None, None)),
        *_linear(f"{layer}.mlp.up_proj", f"{_D}/feed_forward/hidden", LINEAR, (None, None)),
        *_linear(f"{layer}.mlp.down_proj", f"{_D}/feed_forward/out", LINEAR, (None, None)),
        Tensor("model.norm.weight", ("decoder/final_norm/scale",), VECTOR),
        Tensor("lm_head.weight", ("output/kernel",), LINEAR, None, _UNTIED),
    )


LLAMA = Family(
    name="llama",
    label="Llama",
    class_name="LlamaForCausalLM",
    architecture="decoder_only",
    task="language_model",
    keys=(
        Key("vocab_size", "vocab_size", 32_000),
        Key("max_position_embeddings", "max_length", 2048),
        Key("hidden_size", "emb_dim", 4096),
        Key("num_hidden_layers", "num_decoder_layers", 32),
        Key("num_attention_heads", "num_heads", 32),
        Key("num_key_value_heads", "num_kv_heads", None),
        Key("head_dim", "head_dim", None),
        Key("intermediate_size", "mlp_dim", 11_008),
        Key("hidden_act", "activation", "silu", {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu"}),
        Key("rms_norm_eps", "norm_epsilon", 1e-6),
        Key("attention_dropout", "attention_dropout_rate", 0.0),
        Key("initializer_range", "init_std", 0.02),
        Key("tie_word_embeddings", "tie_output", False),
        Key("attention_bias", "use_bias", False),
        Key("mlp_bias", "use_bias", False),
        Key("bos_token_id", "decoder_start_id", 1),
    ),
    tensors=_llama_tensors(),
    fixed={
        **{"architecture": "decoder_only", "norm_position": "pre", "norm": "rmsnorm", "position_encoding": "rotary"},
        **{"scale_embeddings": False, "attention_scale": True, "output_bias": False, **_PLAIN},
        "value_head_dim": lambda config: config.head_dim,
        # transformers refuses a width that the heads do not divide, even if head_dim is given.
        "emb_dim": lambda config: config.emb_dim // config.num_heads * config.num_heads,
    },
    ignored={"pretraining_tp": "a way to compute the same numbers"},
    copies={"lm_head.weight": ("model.embed_tokens.weight",)},
    computed={r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "the rotary frequencies, which are computed"},
    rope=True,
)


def _marian_attention(theirs: str, ours: str) -> tuple[Tensor, ...]:
    return (
        *(
            tensor
            for short, name in (("q", "query"), ("k", "key"), ("v", "value"))
            for tensor in _linear(f"{theirs}.{short}_proj", f"{ours}/{name}", LINEAR, (0, None))
        ),
        *_linear(f"{theirs}.out_proj", f"{ours}/out", HEADS_OUT, (2, 0)),
    )


def _marian_stack(side: str) -> tuple[Tensor, ...]:
    theirs, ours = f"model.{side}.layers.{{layer}}", f"{side}/layers"
    cross = (
        *_marian_attention(f"{theirs}.encoder_attn", f"{ours}/cross_attention"),
        *_norm(f"{theirs}.encoder_attn_layer_norm", f"{ours}/cross_attention_residual/norm"),
    )
    return (
        *_marian_attention(f"{theirs}.self_attn", f"{ours}/self_attention"),
        *_norm(f"{theirs}.self_attn_layer_norm", f"{ours}/self_attention_residual/norm"),
        *(cross if side == "decoder" else ()),
        *_linear(f"{theirs}.fc1", f"{ours}/feed_forward/hidden", LINEAR, (0, None)),
        *_linear(f"{theirs}.fc2", f"{ours}/feed_forward/out", LINEAR, (1, 0)),
        *_norm(f"{theirs}.final_layer_norm", f"{ours}/feed_forward_residual/norm"),
    )


_SHARED, _SEPARATE = {"share_embeddings": True}, {"share_embeddings": False}

MARIAN = Family(
    name="marian",
    label="MarianMT",
    class_name="MarianMTModel",
    architecture="encoder_decoder",
    task="translation",
    keys=(
        Key("vocab_size", "source_vocab_size", 58_101),
        Key("decoder_vocab_size", "vocab_size", 58_101),
        Key("max_position_embeddings", "max_length", 1024),
        Key("d_model", "emb_dim", 1024),
        Key("encoder_layers", "num_encoder_layers", 12),
        Key("decoder_layers", "num_decoder_layers", 12),
        Key("encoder_attention_heads", "num_heads", 16),
        Key("decoder_attention_heads", "num_heads", 16),
        Key("encoder_ffn_dim", "mlp_dim", 4096),
        Key("decoder_ffn_dim", "mlp_dim", 4096),
        Key("activation_function", "activation", "gelu", _GPT_ACTIVATIONS),
        Key("scale_embedding", "scale_embeddings", False),
        Key("share_encoder_decoder_embeddings", "share_embeddings", True),
        Key("tie_word_embeddings", "tie_output", True),
        Key("dropout", "dropout_rate", 0.1),
        Key("attention_dropout", "attention_dropout_rate", 0.0),
        Key("activation_dropout", "activation_dropout_rate", 0.0),
        Key("init_std", "init_std", 0.02),
        Key("decoder_start_token_id", "decoder_start_id", 58_100),
    ),
    tensors=(
        Tensor("model.shared.weight", ("embedding/embedding",), TABLE, 1, _SHARED),
        Tensor("model.encoder.embed_tokens.weight", ("source_embedding/embedding",), TABLE, 1, _SEPARATE),
        Tensor("model.decoder.embed_tokens.weight", ("embedding/embedding",), TABLE, 1, _SEPARATE),
        *_marian_stack("encoder"),
        *_marian_stack("decoder"),
        Tensor("lm_head.weight", ("output/kernel",), LINEAR, 0, _UNTIED),
        Tensor("final_logits_bias", ("output/bias",), ROW, None, {"output_bias": True}),
    ),
    fixed={
        **{"architecture": "encoder_decoder", "norm_position": "post", "norm": "layernorm", "norm_epsilon": 1e-5},
        **{"position_encoding": "sinusoidal", "use_bias": True, "attention_scale": True, **_OWN_HEADS, **_PLAIN},
        "num_kv_heads": lambda config: config.num_heads,
    },
    required={
        **{"encoder_layerdrop": (0.0, 0), "decoder_layerdrop": (0.0, 0), "is_encoder_decoder": (True,)},
        **{"normalize_before": (False,), "normalize_embedding": (False,), "add_final_layer_norm": (False,)},
        **{"add_bias_logits": (False,), "static_position_embeddings": (True,), "extra_pos_embeddings": (0,)},
        "is_decoder": (False,),
    },
    ignored={
        "num_hidden_layers": "repeats encoder_layers",
        **dict.fromkeys(("classif_dropout", "classifier_dropout"), "of another head"),
        "bos_token_id": "Marian has no begin-of-sequence",
    },
    repeats={"decoder_vocab_size": "vocab_size"},
    copies={
        "lm_head.weight": ("model.shared.weight", "model.decoder.embed_tokens.weight"),
        "model.encoder.embed_tokens.weight": ("model.shared.weight",),
        "model.decoder.embed_tokens.weight": ("model.shared.weight",),
    },
    computed={r"model\.(encoder|decoder)\.embed_positions\.weight": "the sinusoids, which are computed"},
    zeros={"final_logits_bias": "output_bias"},
    sines_first=True,
)

FAMILIES = {family.name: family for family in (GPT2, LLAMA, MARIAN)}
"""By `model_type`."""
