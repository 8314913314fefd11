"""The section `model`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from transformer_jax.config.fields import DerivedFloat, DerivedInt, choice, field, number, rate
from transformer_jax.config.ids import BOS_ID


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What the model computes. Equations stand beside the code that implements them, in `transformer_jax.nn`."""

    vocab_size: int = number(8192, "rows of the embedding table, and the size the tokenizer is trained to", 8)
    emb_dim: int = number(512, "model width (the paper's d_model)", 1)
    num_heads: int = number(8, "attention heads", 1)
    num_kv_heads: DerivedInt = number(
        None, "key/value heads; default num_heads; fewer: grouped-query attention, 1: multi-query", 1
    )
    head_dim: DerivedInt = number(None, "width of queries and keys per head (d_k); default emb_dim / num_heads", 1)
    value_head_dim: DerivedInt = number(None, "width of values per head (d_v); default head_dim", 1)
    mlp_dim: DerivedInt = number(None, "feed-forward width (d_ff); default 4 * emb_dim", 1)
    num_encoder_layers: int = number(6, "encoder layers", 1)
    num_decoder_layers: int = number(6, "decoder layers", 1)
    max_length: int = number(256, "capacity in positions: of a learned table, and of the decoder's cache", 2)
    norm_position: str = choice("post", ("post", "pre"), "where a sub-layer normalises; nn/residual.py")
    norm: str = choice("layernorm", ("layernorm", "rmsnorm"), "which normalisation; nn/norms.py")
    norm_epsilon: float = number(1e-6, "added to the variance before the square root", 0.0)
    position_encoding: str = choice(
        "sinusoidal", ("sinusoidal", "learned", "rotary", "relative", "none"), "how order is told; nn/positions.py"
    )
    rotary_base: float = number(10_000.0, "slowest wavelength of `rotary` is 2 pi times this", 1.0)
    relative_num_buckets: int = number(32, "distance buckets of `relative`", 4)
    relative_max_distance: int = number(128, "distances from here on share the last bucket of `relative`", 2)
    activation: str = choice(
        "relu", ("relu", "gelu", "gelu_tanh", "swiglu", "geglu"), "feed-forward activation; nn/feed_forward.py"
    )
    use_bias: bool = field(True, "biases in projections, feed-forward and LayerNorm")
    attention_scale: bool = field(True, "divide attention logits by sqrt(head_dim)")
    share_embeddings: bool = field(True, "one embedding table for source and target")
    tie_output: bool = field(True, "the target embedding table is the output projection too")
    scale_embeddings: bool = field(True, "multiply embeddings by sqrt(emb_dim)")
    dropout_rate: float = rate(0.1, "dropout on every sub-layer's output before it joins the residual (P_drop)")
    embedding_dropout_rate: DerivedFloat = rate(None, "dropout on embeddings + positions; default dropout_rate")
    attention_dropout_rate: float = rate(0.0, "dropout on attention weights")
    activation_dropout_rate: float = rate(0.0, "dropout on the feed-forward activation")
    decoder_start_id: int = number(BOS_ID, "first decoder input", 0)
    attention_implementation: str = choice(
        "auto", ("auto", "reference", "xla", "cudnn"), "what computes attention; nn/attention_kernels.py", rounding=True
    )
    dtype: str = choice("float32", ("float32", "bfloat16"), "type of the computation; parameters stay float32")
    scan_layers: bool = field(
        False, "compile one layer and loop over it: faster to compile, slower to run", rounding=True
    )
    remat: str = choice(
        "none",
        ("none", "dots", "full"),
        "what training computes twice to save memory: nothing, all but products with parameters, or whole layers; on "
        "a CPU only with scan_layers, since XLA there undoes it elsewhere",
        rounding=True,
    )

    def resolved(self) -> ModelConfig:
        head_dim = self.emb_dim // self.num_heads if self.head_dim is None else self.head_dim
        defaults = {
            "num_kv_heads": self.num_heads,
            "head_dim": head_dim,
            "value_head_dim": head_dim,
            "mlp_dim": 4 * self.emb_dim,
            "embedding_dropout_rate": self.dropout_rate,
        }
        return dataclasses.replace(self, **{k: v for k, v in defaults.items() if getattr(self, k) is None})

    def problems(self) -> Iterator[str]:
        if self.head_dim is None and self.emb_dim % self.num_heads:
            yield (
                f"num_heads={self.num_heads} does not divide emb_dim={self.emb_dim}; "
                "choose a divisor or set model.head_dim"
            )
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            yield f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}"
        if self.position_encoding == "sinusoidal" and self.emb_dim % 2:
            yield f"emb_dim={self.emb_dim} is odd; position_encoding='sinusoidal' pairs sines with cosines"
        head_dim = self.emb_dim // self.num_heads if self.head_dim is None else self.head_dim
        if self.position_encoding == "rotary" and head_dim % 2:
            yield f"head_dim={head_dim} is odd; position_encoding='rotary' rotates pairs"
        if self.position_encoding == "relative" and self.relative_num_buckets % 2:
            yield f"relative_num_buckets={self.relative_num_buckets} is odd; half serve each direction"
        if self.position_encoding == "relative" and self.relative_max_distance <= self.relative_num_buckets // 2:
            yield (
                f"relative_max_distance={self.relative_max_distance} must exceed "
                f"relative_num_buckets / 2 = {self.relative_num_buckets // 2}"
            )
        if self.decoder_start_id >= self.vocab_size:
            yield f"decoder_start_id={self.decoder_start_id} is outside vocab_size={self.vocab_size}"
