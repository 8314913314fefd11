"""The families that can be converted: a table for each class of transformers.

A new family is a new entry of `CLASSES`; no other module needs a change.
"""

from __future__ import annotations

from transformer_jax.convert import bart
from transformer_jax.convert.bert import BERT_CLASSES
from transformer_jax.convert.layouts import (
    HEADS_OUT,
    HEADS_OUT_TABLE,
    LINEAR,
    ROTARY_LINEAR,
    ROTARY_VECTOR,
    ROW,
    TABLE,
    VECTOR,
)
from transformer_jax.convert.t5 import T5
from transformer_jax.convert.tables import (
    ACTIVATIONS,
    LIBRARY,
    OWN_HEADS,
    PLAIN,
    UNTIED,
    Family,
    Key,
    Tensor,
    linear,
    norm,
)
from transformer_jax.convert.vit import VIT_CLASSES

_D = "decoder/layers"


def _gpt2_tensors() -> tuple[Tensor, ...]:
    h, parts = "transformer.h.{layer}", ("query", "key", "value")
    return (
        Tensor("transformer.wte.weight", ("embedding/embedding",), TABLE),
        Tensor("transformer.wpe.weight", ("decoder/position_embedding/learned/embedding",), TABLE),
        *norm(f"{h}.ln_1", f"{_D}/self_attention_residual/norm"),
        Tensor(f"{h}.attn.c_attn.weight", tuple(f"{_D}/self_attention/{part}/kernel" for part in parts), TABLE),
        Tensor(f"{h}.attn.c_attn.bias", tuple(f"{_D}/self_attention/{part}/bias" for part in parts), VECTOR),
        Tensor(f"{h}.attn.c_proj.weight", (f"{_D}/self_attention/out/kernel",), HEADS_OUT_TABLE),
        Tensor(f"{h}.attn.c_proj.bias", (f"{_D}/self_attention/out/bias",), VECTOR),
        *norm(f"{h}.ln_2", f"{_D}/feed_forward_residual/norm"),
        Tensor(f"{h}.mlp.c_fc.weight", (f"{_D}/feed_forward/hidden/kernel",), TABLE),
        Tensor(f"{h}.mlp.c_fc.bias", (f"{_D}/feed_forward/hidden/bias",), VECTOR),
        Tensor(f"{h}.mlp.c_proj.weight", (f"{_D}/feed_forward/out/kernel",), TABLE),
        Tensor(f"{h}.mlp.c_proj.bias", (f"{_D}/feed_forward/out/bias",), VECTOR),
        *norm("transformer.ln_f", "decoder/final_norm"),
        Tensor("lm_head.weight", ("output/kernel",), LINEAR, None, UNTIED),
    )


GPT2 = Family(
    name="gpt2",
    label="GPT-2",
    class_name="GPT2LMHeadModel",
    also=("GPT2Model",),
    architecture="decoder_only",
    tasks=("language_model",),
    keys=(
        Key("vocab_size", "vocab_size", 50_257),
        Key("n_positions", "max_length", 1024),
        Key("n_embd", "emb_dim", 768),
        Key("n_layer", "num_decoder_layers", 12),
        Key("n_head", "num_heads", 12),
        Key("n_inner", "mlp_dim", None),
        Key("activation_function", "activation", "gelu_new", ACTIVATIONS),
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
        **{"position_encoding": "learned", "scale_embeddings": False, "output_bias": False, **OWN_HEADS, **PLAIN},
        "num_kv_heads": lambda config: config.num_heads,
    },
    required={"add_cross_attention": (False,), "scale_attn_by_inverse_layer_idx": (False,)},
    ignored={
        "reorder_and_upcast_attn": "changes only the rounding of float16",
        **dict.fromkeys(
            ("summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout",
             "summary_last_dropout", "summary_proj_to_labels"),
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
        *linear(f"{layer}.self_attn.q_proj", f"{_D}/self_attention/query", ROTARY_LINEAR, bias=ROTARY_VECTOR),
        *linear(f"{layer}.self_attn.k_proj", f"{_D}/self_attention/key", ROTARY_LINEAR, bias=ROTARY_VECTOR),
        *linear(f"{layer}.self_attn.v_proj", f"{_D}/self_attention/value", LINEAR),
        *linear(f"{layer}.self_attn.o_proj", f"{_D}/self_attention/out", HEADS_OUT),
        Tensor(f"{layer}.post_attention_layernorm.weight", (f"{_D}/feed_forward_residual/norm/scale",), VECTOR),
        *linear(f"{layer}.mlp.gate_proj", f"{_D}/feed_forward/gate", LINEAR),
        *linear(f"{layer}.mlp.up_proj", f"{_D}/feed_forward/hidden", LINEAR),
        *linear(f"{layer}.mlp.down_proj", f"{_D}/feed_forward/out", LINEAR),
        Tensor("model.norm.weight", ("decoder/final_norm/scale",), VECTOR),
        Tensor("lm_head.weight", ("output/kernel",), LINEAR, None, UNTIED),
    )


LLAMA = Family(
    name="llama",
    label="Llama",
    class_name="LlamaForCausalLM",
    also=("LlamaModel",),
    architecture="decoder_only",
    tasks=("language_model",),
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
        **{"scale_embeddings": False, "attention_scale": True, "output_bias": False, **PLAIN},
        "value_head_dim": lambda config: config.head_dim,
        # transformers refuses a width that the heads do not divide, even if head_dim is given.
        "emb_dim": lambda config: config.emb_dim // config.num_heads * config.num_heads,
    },
    ignored={
        "pretraining_tp": "a way to compute the same numbers",
        **dict.fromkeys(
            ("original_max_position_embeddings", "partial_rotary_factor"), "of rotary positions that are scaled"
        ),
        "_rope_type_labels": LIBRARY,
        "layer_types": "transformers reads it for other models",
    },
    copies={"lm_head.weight": ("model.embed_tokens.weight",)},
    computed={r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "the rotary frequencies, which are computed"},
    prefix="model.",
    rope=True,
)


_SHARED, _SEPARATE = {"share_embeddings": True}, {"share_embeddings": False}

MARIAN = Family(
    name="marian",
    label="MarianMT",
    class_name="MarianMTModel",
    also=("MarianModel",),
    once=("bart",),
    architecture="encoder_decoder",
    tasks=("translation",),
    keys=(
        Key("vocab_size", "source_vocab_size", 58_101),
        Key("decoder_vocab_size", "vocab_size", 58_101),
        *bart.SIZES,
        Key("share_encoder_decoder_embeddings", "share_embeddings", True),
        Key("tie_word_embeddings", "tie_output", True),
        Key("decoder_start_token_id", "decoder_start_id", 58_100),
    ),
    tensors=(
        Tensor("model.shared.weight", ("embedding/embedding",), TABLE, 1, _SHARED),
        Tensor("model.encoder.embed_tokens.weight", ("source_embedding/embedding",), TABLE, 1, _SEPARATE),
        Tensor("model.decoder.embed_tokens.weight", ("embedding/embedding",), TABLE, 1, _SEPARATE),
        *bart.layers("encoder"),
        *bart.layers("decoder"),
        Tensor("lm_head.weight", ("output/kernel",), LINEAR, 0, UNTIED),
        Tensor("final_logits_bias", ("output/bias",), ROW, None, {"output_bias": True}),
    ),
    fixed={
        **{"architecture": "encoder_decoder", "norm_position": "post", "norm": "layernorm", "norm_epsilon": 1e-5},
        **{"position_encoding": "sinusoidal", "use_bias": True, "attention_scale": True, **OWN_HEADS, **PLAIN},
        "num_kv_heads": lambda config: config.num_heads,
    },
    required=bart.REQUIRED,
    because=bart.BECAUSE,
    ignored={**bart.IGNORED, "bos_token_id": "Marian has no begin-of-sequence"},
    notes={
        **bart.NOTES,
        **{"normalize_embedding": False, "static_position_embeddings": True, "extra_pos_embeddings": 0},
    },
    repeats={"decoder_vocab_size": "vocab_size"},
    copies=bart.COPIES,
    computed={
        r"model\.(encoder|decoder)\.embed_positions\.weight": "the sinusoids, which are computed",
        r"model\.shared\.weight": "not used: encoder and decoder have tables of their own",
    },
    zeros={"final_logits_bias": "output_bias"},
    own_tables=("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
    prefix="model.",
    sines_first=True,
)

CLASSES = (GPT2, LLAMA, MARIAN, *BERT_CLASSES, T5, bart.BART, *VIT_CLASSES)
"""One table for each class of transformers; of a family with several classes the first is the default."""

FAMILIES = {name: next(c for c in CLASSES if c.name == name) for name in dict.fromkeys(c.name for c in CLASSES)}
"""The default class of every family, by `model_type`."""
