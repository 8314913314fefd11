"""MarianMT (Junczys-Dowmunt et al. 2018), whose layers are those of BART."""

from __future__ import annotations

from transformer_jax.convert import bart
from transformer_jax.convert.layouts import LINEAR, ROW, TABLE
from transformer_jax.convert.tables import OWN_HEADS, PLAIN, UNTIED, Family, Key, Tensor

_SHARED, _SEPARATE = {"share_embeddings": True}, {"share_embeddings": False}

MARIAN = Family(
    name="marian",
    label="MarianMT",
    class_name="MarianMTModel",
    also=("MarianModel",),
    once=("bart",),
    architecture="encoder_decoder",
    tasks=("translation", "text_to_text"),
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
    prefix="model.",
    own_tables=("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
    sines_first=True,
)
