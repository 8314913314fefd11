"""The section `model`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from transformer_jax.config.fields import (
    Choices,
    DerivedBool,
    DerivedFloat,
    DerivedInt,
    choice,
    field,
    number,
    outside_object,
    rate,
)
from transformer_jax.config.layers import STACKS, layer_problems, values_in_layers
from transformer_jax.config.recurrent import recurrent_problems

PREDICTING_TOKENS = ("translation", "text_to_text", "language_model", "masked_lm", "span_corruption", "denoising")
"""The values of `task.name` whose outputs are logits over the vocabulary."""
RECURRENT = "recurrent"
"""The value of `model.architecture` for recurrent models."""
TRANSFORMERS = ("encoder_decoder", "decoder_only", "encoder_only")
"""The values of `model.architecture` for Transformers."""

_ARCHITECTURE = "model.architecture"
_OF_TRANSFORMERS = {_ARCHITECTURE: TRANSFORMERS}
_OF_RECURRENT = {_ARCHITECTURE: (RECURRENT,)}
_TWO_STACKS = {_ARCHITECTURE: ("encoder_decoder", RECURRENT)}
_WITH_ENCODER = {_ARCHITECTURE: ("encoder_decoder", "encoder_only", RECURRENT)}
_WITH_DECODER = {_ARCHITECTURE: ("encoder_decoder", "decoder_only", RECURRENT)}
_NORMS = "transformer_jax.nn.norms:NORMS"
_PLACES = "transformer_jax.nn.residual:NORM_POSITIONS"
_QK_NORMS = "transformer_jax.nn.attention:QK_NORMS"
_ENCODER_ONLY = {_ARCHITECTURE: ("encoder_only",)}
NORMS_OVER_BATCH = ("batchnorm",)
"""The values of `model.norm` whose statistics are over the tokens of a batch: `nn.norms.NormKind.over_batch`."""
INSIDE_NORMS = ("sandwich", "output", "peri")
"""The values of `model.norm_position` that normalise the output of a sub-layer: `nn.residual.NormPosition.inside`."""
WITHOUT_HEAD_GAINS = ("none", "l2")
"""The values of `model.qk_norm` that have no gains of the form of `norm_scale`."""
ATTENTION = "attention"
"""The value of `model.mixer` whose state of decoding is keys and values. All others read in one direction only."""
_NORMALISED = _OF_TRANSFORMERS | {"model.norm": Choices(_NORMS, without=("none",))}
_WITH_ATTENTION = _OF_TRANSFORMERS | {"model.mixer": (ATTENTION,)}
_WITH_EXPERTS = _OF_TRANSFORMERS | {"model.feed_forward": ("experts",)}
_TOKENS = {"model.inputs": ("tokens",)}
_PATCHES = {"model.inputs": ("patches",)}
_OVER_VOCABULARY = _TOKENS | {"task.name": PREDICTING_TOKENS}


def parse_pixel_values(text: str, channels: int) -> tuple[float, ...]:
    """Return the numbers of `model.pixel_mean` or `pixel_std`, one for each channel; raise ValueError for others."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, channels) or not all(abs(number) < float("inf") for number in numbers):
        raise ValueError(f"expected one number, or model.image_channels={channels} numbers separated by commas")
    return numbers if len(numbers) == channels else numbers * channels


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model. The equations are in `transformer_jax.nn`, beside the code that implements them."""

    architecture: str = choice(
        "encoder_decoder",
        "transformer_jax.models.architecture:ARCHITECTURES",
        "the blocks of the model and their inputs; models/architecture.py",
        outside=True,
        extends=("model",),
        always_read=("model.vocab_size", "model.max_length", "optimizer.layer_decay"),
    )
    inputs: str = choice(
        "tokens",
        "transformer_jax.nn.patches:INPUTS",
        "what the encoder reads: ids of tokens, or images, which it cuts into patches; nn/patches.py",
        read_by=_ENCODER_ONLY,
    )
    image_size: int = number(224, "height and width of the images, in pixels", 1, read_by=_PATCHES)
    image_channels: int = number(3, "channels of the images: 1 for grey, 3 for colours", 1, read_by=_PATCHES)
    patch_size: int = number(16, "height and width of a patch, in pixels; must divide image_size", 1, read_by=_PATCHES)
    class_token: bool = field(
        True, "a learned vector in front of the patches, for task.pooling='first'", read_by=_PATCHES
    )
    pixel_mean: str = field(
        "0.5",
        "subtracted from pixels of 0 to 1, before the division by pixel_std: one number, or one for each channel, "
        "separated by commas",
        read_by=_PATCHES,
    )
    pixel_std: str = field("0.5", "divides pixels of 0 to 1, like pixel_mean", read_by=_PATCHES)
    vocab_size: int = number(
        8192, "rows of the embedding table, and vocabulary size of a newly trained tokenizer", 8, read_by=_TOKENS
    )
    source_vocab_size: DerivedInt = number(
        None,
        "rows of the source's embedding table, and vocabulary size of its tokenizer; default vocab_size; another size "
        "needs share_embeddings=false and data.separate_tokenizers",
        8,
        read_by=_TWO_STACKS,
        derived_from=("model.vocab_size",),
    )
    emb_dim: int = number(512, "model width (the paper's d_model)", 1)
    num_heads: int = number(8, "attention heads", 1, read_by=_OF_TRANSFORMERS)
    num_kv_heads: DerivedInt = number(
        None,
        "key/value heads; default num_heads; fewer: grouped-query attention, 1: multi-query",
        1,
        read_by=_WITH_ATTENTION,
        derived_from=("model.num_heads",),
    )
    head_dim: DerivedInt = number(
        None,
        "width of queries and keys per head (d_k); default emb_dim / num_heads",
        1,
        read_by=_OF_TRANSFORMERS,
        derived_from=("model.emb_dim", "model.num_heads"),
    )
    value_head_dim: DerivedInt = number(
        None,
        "width of values per head (d_v); default head_dim",
        1,
        read_by=_OF_TRANSFORMERS,
        derived_from=("model.head_dim",),
    )
    mlp_dim: DerivedInt = number(
        None,
        "feed-forward width (d_ff); default 4 * emb_dim",
        1,
        read_by=_OF_TRANSFORMERS,
        derived_from=("model.emb_dim",),
    )
    num_encoder_layers: int = number(6, "encoder layers; 0: a recurrent decoder alone", 0, read_by=_WITH_ENCODER)
    num_decoder_layers: int = number(6, "decoder layers; 0: a recurrent encoder alone", 0, read_by=_WITH_DECODER)
    max_length: int = number(
        256,
        "number of positions in a learned position table and in the decoder's cache; a recurrent model has neither, so "
        "its texts may have any length",
        2,
        read_by=_TOKENS,
    )
    layer_pattern: str = field(
        "",
        "layers that differ: a letter of layer_kinds for each, as in SSSL, repeated up to the depth of the stack; "
        "SSSL|L: the last layer is L; or 'encoder: PATTERN; decoder: PATTERN'; empty: all layers are equal",
        read_by=_OF_TRANSFORMERS,
    )
    layer_kinds: str = field(
        "",
        "what each letter of layer_pattern changes, as in 'S: attention_window=256; L: attention_rotates=false'",
        read_by=_OF_TRANSFORMERS,
    )
    norm_position: str = choice(
        "post",
        "transformer_jax.nn.residual:NORM_POSITIONS",
        "place of the norms: after each residual sum, before each sub-layer, of its output, or both; `deepnorm` also "
        "scales sums and initial parameters by the depth; nn/residual.py",
        outside=True,
        read_by=_NORMALISED,
    )
    norm: str = choice(
        "layernorm",
        _NORMS,
        "kind of normalisation; `batchnorm` has statistics over the batch and needs architecture=encoder_only; "
        "nn/norms.py",
        outside=True,
        read_by=_OF_TRANSFORMERS,
    )
    norm_epsilon: float = number(
        1e-6,
        "added to the variance before the square root",
        0.0,
        read_by=_OF_TRANSFORMERS | {"model.norm": Choices(_NORMS, without=("none", "dyt"))},
        or_read_by=(
            _WITH_ATTENTION | {"model.qk_norm": Choices(_QK_NORMS, without=("none",))},
            _OF_TRANSFORMERS | {"model.mixer": ("gated_delta",)},
        ),
    )
    norm_scale: str = choice(
        "learned",
        "transformer_jax.nn.norms:NORM_SCALES",
        "gains of norms, and of `qk_norm`: learned, first 1; `none`; or `offset`, 1 + w with a learned w, first 0",
        read_by=_NORMALISED,
        or_read_by=(_WITH_ATTENTION | {"model.qk_norm": Choices(_QK_NORMS, without=WITHOUT_HEAD_GAINS)},),
    )
    parallel: str = choice(
        "none",
        "transformer_jax.nn.layer:PARALLEL",
        "the feed-forward part reads the input of the layer and not the output of attention: normalised as that of "
        "attention, or by a norm of its own",
        read_by={_ARCHITECTURE: ("decoder_only", "encoder_only"), "model.norm_position": ("pre",)},
    )
    residual_scale: str = choice(
        "none",
        "transformer_jax.nn.residual:RESIDUAL_SCALES",
        "learned factor of the output of a sub-layer: one number (ReZero, SkipInit), or one per feature (LayerScale)",
        read_by=_OF_TRANSFORMERS,
    )
    residual_scale_init: float = number(
        0.0,
        "initial value of the factors of residual_scale; 0 as in ReZero, a small number as in LayerScale",
        initial=True,
        read_by=_OF_TRANSFORMERS | {"model.residual_scale": ("scalar", "vector")},
    )
    residual_multiplier: float = number(
        1.0,
        "constant factor of the output of every sub-layer before it joins the residual",
        above=0.0,
        hyper=True,
        switch=True,
        off=1.0,
        evaluated=True,
        read_by=_OF_TRANSFORMERS,
    )
    residual_lambdas: bool = field(
        False,
        "before every layer x becomes r x + s x0, with x0 the input of the stack, and two learned numbers r and s per "
        "layer; see residual_lambdas_init",
        read_by=_OF_TRANSFORMERS,
    )
    residual_lambdas_init: str = choice(
        "identity",
        "transformer_jax.nn.stack:LAMBDA_INITS",
        "initial values of residual_lambdas: r 1 and s 0; or both falling with depth, as in nanochat, r from 1.15 to "
        "1.05 and s from 0.2 to 0.05",
        initial=True,
        read_by=_OF_TRANSFORMERS,
    )
    position_encoding: str = choice(
        "sinusoidal",
        "transformer_jax.nn.positions:ENCODINGS",
        "how positions of tokens enter the model; nn/positions.py",
        outside=True,
        read_by=_OF_TRANSFORMERS,
    )
    rotary_base: float = number(
        10_000.0, "`rotary`: the longest wavelength is 2 pi times this", 1.0, read_by=_OF_TRANSFORMERS, per_layer=True
    )
    attention_rotates: bool = field(
        True,
        "`rotary`: rotate queries and keys; false in some layers of a decoder: they see no positions (NoPE)",
        read_by=_WITH_ATTENTION | {"model.position_encoding": ("rotary",)},
        per_layer=True,
        of_attention=True,
    )
    rotary_fraction: float = number(
        1.0,
        "`rotary`: rotate only the first dimensions of every head, this part of head_dim; the others see no positions",
        0.0,
        1.0,
        read_by=_WITH_ATTENTION | {"model.position_encoding": ("rotary",)},
        of_attention=True,
    )
    qk_norm: str = choice(
        "none",
        _QK_NORMS,
        "norm of queries and keys: `rms` and `layernorm` over each head with gains that all heads share, `rms_full` "
        "over all heads together, `l2` to length 1 with a learned scale of the logits for each head; nn/attention.py",
        read_by=_WITH_ATTENTION,
        of_attention=True,
    )
    qk_norm_after_rotation: bool = field(
        False,
        "`rotary`: the norm of queries and keys follows the rotation; false: it comes before",
        read_by=_WITH_ATTENTION
        | {"model.position_encoding": ("rotary",), "model.qk_norm": Choices(_QK_NORMS, without=("none",))},
        of_attention=True,
    )
    attention_sink: str = choice(
        "none",
        ("none", "zero", "learned"),
        "one more logit of every softmax, whose weight reads no value: 0, or a learned number for each head; a query "
        "can then attend to nothing",
        read_by=_WITH_ATTENTION,
        of_attention=True,
    )
    mixer: str = choice(
        ATTENTION,
        "transformer_jax.nn.mixers:MIXERS",
        "what moves information between the tokens of a layer; nn/mixers.py",
        outside=True,
        read_by=_OF_TRANSFORMERS,
        per_layer=True,
        structure=True,
    )
    feed_forward: str = choice(
        "dense",
        "transformer_jax.nn.feed_forwards:FEED_FORWARDS",
        "the part of a layer that maps every token by itself: one network, or experts; nn/feed_forwards.py",
        outside=True,
        read_by=_OF_TRANSFORMERS,
        per_layer=True,
        structure=True,
    )
    num_experts: int = number(
        8, "`experts`: feed-forward networks of a layer, each of the width mlp_dim", 1, read_by=_WITH_EXPERTS
    )
    experts_per_token: int = number(
        2, "`experts`: networks that map a token; the router chooses them", 1, read_by=_WITH_EXPERTS
    )
    attention_window: DerivedInt = number(
        None,
        "self-attention reads only keys whose position is less than this many away, in both directions unless a "
        "causal mask hides one; default: all keys",
        1,
        read_by=_WITH_ATTENTION | _TOKENS,
        per_layer=True,
        of_attention=True,
    )
    relative_num_buckets: int = number(32, "`relative`: number of distance buckets", 4, read_by=_OF_TRANSFORMERS)
    relative_max_distance: int = number(
        128, "`relative`: this distance and all greater ones share the last bucket", 2, read_by=_OF_TRANSFORMERS
    )
    activation: str = choice(
        "relu",
        "transformer_jax.nn.feed_forward:ACTIVATIONS",
        "feed-forward activation; nn/feed_forward.py",
        outside=True,
        read_by=_OF_TRANSFORMERS,
    )
    use_bias: bool = field(
        True, "biases in projections, feed-forward, LayerNorm and BatchNorm", read_by=_OF_TRANSFORMERS
    )
    qkv_bias: DerivedBool = field(
        None,
        "biases in the projections of queries, keys and values; default use_bias; Qwen2 has no others",
        read_by=_WITH_ATTENTION,
        derived_from=("model.use_bias",),
    )
    attention_scale: bool = field(True, "divide attention logits by sqrt(head_dim)", read_by=_WITH_ATTENTION)
    attention_multiplier: DerivedFloat = number(
        None,
        "factor of the attention logits in place of 1 / sqrt(head_dim); default: as attention_scale says",
        above=0.0,
        hyper=True,
        switch=True,
        off=None,
        evaluated=True,
        read_by=_WITH_ATTENTION,
        of_attention=True,
    )
    attention_logit_cap: DerivedFloat = number(
        None,
        "bounds attention logits smoothly: c tanh(z / c) with this c; default: no bound",
        above=0.0,
        hyper=True,
        switch=True,
        off=None,
        evaluated=True,
        read_by=_WITH_ATTENTION,
        of_attention=True,
    )
    share_embeddings: bool = field(True, "one embedding table for source and target", read_by=_TWO_STACKS)
    tie_output: bool = field(
        True,
        "use the target embedding table as the projection to the vocabulary; only where the task predicts tokens",
        read_by=_TOKENS,
    )
    output_bias: bool = field(
        False,
        "add a learned bias to the logits over the vocabulary; only where the task predicts tokens",
        read_by=_TOKENS,
    )
    scale_embeddings: bool = field(
        True, "multiply embeddings by sqrt(emb_dim), the factor of 2017; see embedding_multiplier", read_by=_TOKENS
    )
    embedding_multiplier: float = number(
        1.0,
        "multiply embeddings by this, in place of sqrt(emb_dim): it needs scale_embeddings=false; Granite and MiniCPM",
        1e-6,
        hyper=True,
        switch=True,
        off=1.0,
        evaluated=True,
        read_by=_TOKENS,
    )
    scale_logits: bool = field(
        False,
        "divide the input of the projection to the vocabulary by sqrt(emb_dim), as T5; see logits_multiplier",
        read_by=_OF_TRANSFORMERS | _TOKENS,
    )
    logits_multiplier: float = number(
        1.0,
        "multiply the logits over the vocabulary by this, in place of scale_logits; Granite, Cohere and MiniCPM",
        1e-6,
        hyper=True,
        switch=True,
        off=1.0,
        evaluated=True,
        read_by=_OVER_VOCABULARY,
    )
    output_logit_cap: DerivedFloat = number(
        None,
        "bound the logits z over the vocabulary by this cap c: c tanh(z / c); default: no bound; 30 in Gemma 2",
        1e-6,
        hyper=True,
        switch=True,
        off=None,
        evaluated=True,
        read_by=_OVER_VOCABULARY,
    )
    embedding_norm: bool = field(
        False,
        "normalise embeddings + positions before dropout; BERT and BART",
        read_by=_NORMALISED | {"model.norm_position": Choices(_PLACES, without=("peri",))},
    )
    token_types: int = number(
        0,
        "number of types of input tokens, such as first and second text, with an embedding each; 0: no types",
        0,
        read_by={_ARCHITECTURE: ("encoder_decoder", "encoder_only")} | _TOKENS,
    )
    dropout_rate: float = rate(
        0.1,
        "dropout on every sub-layer's output before it joins the residual (P_drop); in a recurrent model, between "
        "layers",
        place="residual",
    )
    embedding_dropout_rate: DerivedFloat = rate(
        None,
        "dropout on embeddings + positions; default dropout_rate",
        place="embedding",
        derived_from=("model.dropout_rate",),
    )
    attention_dropout_rate: float = rate(
        0.0, "dropout on attention weights", place="attention", read_by=_WITH_ATTENTION
    )
    activation_dropout_rate: float = rate(
        0.0, "dropout on the feed-forward activation", place="activation", read_by=_OF_TRANSFORMERS
    )
    final_dropout_rate: float = rate(0.0, "dropout on the output of a stack, after its final norm; T5", place="final")
    head_dropout_rate: DerivedFloat = rate(
        None,
        "dropout on the vectors that the output layer of labels or tags reads; default dropout_rate; BERT",
        place="head",
        read_by={"task.name": ("classification", "tagging", "images")},
        derived_from=("model.dropout_rate",),
    )
    init: str = choice(
        "glorot",
        "transformer_jax.nn.initialisation:INITS",
        "distributions of the initial parameters; nn/initialisation.py",
        initial=True,
    )
    zero_init_outputs: bool = field(
        False,
        "output projections of attention and feed-forward start at zero, whatever `init`, so that every sub-layer "
        "first adds nothing",
        initial=True,
        read_by=_OF_TRANSFORMERS,
    )
    zero_head: bool = field(
        False,
        "kernel and bias of the output layer begin at 0, so that all outputs are equally likely at first; over the "
        "vocabulary it needs tie_output=false",
        initial=True,
    )
    init_std: float = number(
        0.02,
        "standard deviation",
        above=0.0,
        initial=True,
        read_by={"model.init": ("normal", "plain_normal", "normal_with_biases")},
    )
    init_range: float = number(
        0.08,
        "parameters are uniform between minus and plus this",
        above=0.0,
        initial=True,
        read_by={"model.init": ("uniform",)},
    )
    # 3 is the bos id of the tokenizers that this project trains; other tokenizers may use another id.
    decoder_start_id: int = number(3, "id of the first token of every decoder input", 0, read_by=_WITH_DECODER)
    attention_implementation: str = choice(
        "auto",
        ("auto", "reference", "xla", "cudnn"),
        "implementation of attention; nn/attention_kernels.py",
        rounding=True,
        read_by=_WITH_ATTENTION,
    )
    dtype: str = choice("float32", ("float32", "bfloat16"), "number type of the computation; parameters stay float32")
    scan_layers: bool = field(
        False,
        "compile one layer and loop over it: faster to compile, slower to run",
        rounding=True,
        read_by=_OF_TRANSFORMERS,
    )
    remat: str = choice(
        "none",
        "transformer_jax.nn.stack:REMAT_POLICIES",
        "recompute in the backward pass to save memory: nothing, all but products with parameters, or whole layers; "
        "on a CPU only with scan_layers, since XLA:CPU undoes it in unrolled layers",
        rounding=True,
        read_by=_OF_TRANSFORMERS,
    )

    # Recurrent models: nn/recurrent.py, nn/recurrent_attention.py, nn/recurrent_decoder.py.
    cell: str = choice("lstm", "transformer_jax.nn.recurrent:CELLS", "recurrent cell", read_by=_OF_RECURRENT)
    hidden_dim: DerivedInt = number(
        None,
        "width of a recurrent state; an encoder has one per direction; default emb_dim",
        1,
        read_by=_OF_RECURRENT,
        derived_from=("model.emb_dim",),
    )
    cell_biases: int = number(
        1,
        "bias vectors of a recurrent cell: none, one with its input, or another one with its state, as in PyTorch",
        0,
        2,
        read_by=_OF_RECURRENT,
    )
    bidirectional: bool = field(
        False, "the recurrent encoder reads in both directions; Schuster and Paliwal 1997", read_by=_OF_RECURRENT
    )
    bridge: str = choice(
        "last",
        "transformer_jax.nn.recurrent_decoder:BRIDGES",
        "first state of the recurrent decoder: the encoder's last states, a map of the last one, or zero",
        read_by=_OF_RECURRENT,
    )
    attention: str = choice(
        "none",
        "transformer_jax.nn.recurrent_attention:ATTENTIONS",
        "attention of the recurrent decoder to the source: none, additive (Bahdanau et al. 2015), or dot and general "
        "(Luong et al. 2015)",
        read_by=_OF_RECURRENT,
    )
    input_feeding: bool = field(
        False,
        "the cell reads the attentional vector of the step before; Luong et al. 2015, section 3.3",
        read_by=_OF_RECURRENT | {"model.attention": ("dot", "general")},
    )
    feed_context: bool = field(
        False,
        "every step of the recurrent decoder reads the encoder's last state; Cho et al. 2014",
        read_by=_OF_RECURRENT | {"model.attention": ("none",)},
    )
    deep_output: str = choice(
        "none",
        "transformer_jax.nn.recurrent_decoder:DEEP_OUTPUTS",
        "input of the recurrent decoder's projection to the vocabulary: its state alone, or with the context and the "
        "embedding of the token read; `maxout` puts a hidden layer between (Bahdanau et al. 2015, section A.2.2)",
        read_by=_OF_RECURRENT,
    )
    recurrent_implementation: str = choice(
        "scan",
        ("scan", "cudnn"),
        "implementation of a recurrent layer in training: a loop over tokens, or cuDNN's LSTM on an NVIDIA GPU where a "
        "layer's inputs are known before its first step; nn/recurrent_kernels.py",
        rounding=True,
        read_by=_OF_RECURRENT | {"model.cell": ("lstm",)},
    )
    teacher_forcing_rate: float = number(
        1.0,
        "in training, probability that the recurrent decoder reads a token of the target and not its own output; "
        "below 1 it is scheduled sampling with a constant rate (Bengio et al. 2015)",
        0.0,
        1.0,
        hyper=True,
        switch=True,
        off=1.0,
        read_by=_OF_RECURRENT,
    )

    def values_in_layers(self, name: str) -> list[Any]:
        """Return the values of a field that layers of this config have; see `layers.values_in_layers`."""
        return values_in_layers(self, name)

    @property
    def form(self) -> str:
        """The stacks of the model, as the name of the Transformer that has them; else the architecture's own name."""
        if self.architecture != RECURRENT:
            return self.architecture
        if not self.num_encoder_layers:
            return "decoder_only"
        return "encoder_decoder" if self.num_decoder_layers else "encoder_only"

    @property
    def is_transformer(self) -> bool:
        """Whether the model consists of stacks of Transformer layers of this package."""
        return self.architecture in TRANSFORMERS

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks of the model: `encoder`, `decoder`, or both; both too of an architecture from outside."""
        return {"encoder_only": ("encoder",), "decoder_only": ("decoder",)}.get(self.form, STACKS)

    @property
    def memory_dim(self) -> int:
        """Width of the output of a recurrent encoder."""
        return self.resolved().hidden_dim * (2 if self.bidirectional else 1)

    @property
    def output_dim(self) -> int:
        """Width of the vectors from which a recurrent model predicts."""
        if self.form == "encoder_only":
            return self.memory_dim
        if self.deep_output == "maxout":
            return self.emb_dim
        width = self.resolved().hidden_dim
        return width if self.deep_output == "none" else width + self.context_dim + self.emb_dim

    @property
    def context_dim(self) -> int:
        """Width of the context that a step of a recurrent decoder has; 0 if it has none."""
        return self.memory_dim if self.attention != "none" or self.feed_context else 0

    @property
    def has_position_table(self) -> bool:
        """Whether positions have a table of `num_positions` rows: `nn.positions.Encoding.has_table`.

        Then no sequence may be longer.
        """
        outside = outside_object(self, "position_encoding")
        return self.position_encoding == "learned" if outside is None else outside.has_table

    @property
    def rotary_dim(self) -> int:
        """Number of dimensions of a head that rotary positions rotate, the first ones."""
        return round(self.rotary_fraction * self.resolved().head_dim)

    @property
    def has_norms_over_batch(self) -> bool:
        """Whether its norms have statistics over the tokens of a batch: `nn.norms.NormKind.over_batch`."""
        outside = outside_object(self, "norm")
        return self.norm in NORMS_OVER_BATCH if outside is None else outside.over_batch

    @property
    def num_positions(self) -> int:
        """Number of rows of a learned position table: `max_length`, or one per patch and one for the class token."""
        if self.inputs == "tokens":
            return self.max_length
        return (self.image_size // self.patch_size) ** 2 + self.class_token

    def resolved(self) -> ModelConfig:
        head_dim = max(self.emb_dim // self.num_heads, 1) if self.head_dim is None else self.head_dim
        defaults = {
            "source_vocab_size": self.vocab_size,
            "num_kv_heads": self.num_heads,
            "head_dim": head_dim,
            "value_head_dim": head_dim,
            "mlp_dim": 4 * self.emb_dim,
            "qkv_bias": self.use_bias,
            "hidden_dim": self.emb_dim if self.architecture == RECURRENT else None,
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
        if self.has_norms_over_batch and self.architecture != "encoder_only":
            yield (
                f"norm='{self.norm}' cannot be used with architecture='{self.architecture}': its statistics are over "
                "all positions, so a token would depend on later ones, which a decoder must predict; use "
                "architecture='encoder_only', or norm='layernorm' or 'rmsnorm'"
            )
        yield from self._residual_problems()
        if self.position_encoding == "sinusoidal" and self.emb_dim % 2:
            yield f"emb_dim={self.emb_dim} is odd; position_encoding='sinusoidal' pairs sines with cosines"
        head_dim = self.emb_dim // self.num_heads if self.head_dim is None else self.head_dim
        if self.position_encoding == "sinusoidal_2d" and self.inputs != "patches":
            yield "position_encoding='sinusoidal_2d' numbers rows and columns of patches; it needs inputs='patches'"
        elif self.position_encoding == "sinusoidal_2d" and (self.emb_dim % 4 or self.emb_dim < 8):
            yield (
                f"emb_dim={self.emb_dim}: position_encoding='sinusoidal_2d' needs a multiple of 4, at least 8: sines "
                "and cosines of rows and of columns"
            )
        if self.position_encoding == "rotary" and head_dim % 2:
            yield f"head_dim={head_dim} is odd; position_encoding='rotary' rotates pairs"
        if self.qk_norm == "l2" and self.attention_multiplier is not None:
            yield (
                f"attention_multiplier={self.attention_multiplier:g} has no effect with qk_norm='l2', which learns the "
                "factor of the logits; leave one of them out"
            )
        elif self.qk_norm not in ("none", "l2") and not self.attention_scale and self.attention_multiplier is None:
            yield (
                f"qk_norm='{self.qk_norm}' with attention_scale=false: logits of normalised queries and keys can be as "
                "large as head_dim; set attention_multiplier, or attention_scale=true"
            )
        rotated = self.rotary_fraction * head_dim
        is_odd = abs(rotated - 2 * round(rotated / 2)) > 1e-6 * head_dim
        if self.position_encoding == "rotary" and is_odd and head_dim % 2 == 0:
            yield (
                f"rotary_fraction={self.rotary_fraction:g} of head_dim={head_dim} is {rotated:g}; "
                "position_encoding='rotary' rotates pairs, so it must be an even whole number"
            )
        if self.position_encoding == "alibi" and self.inputs == "patches":
            yield (
                "position_encoding='alibi' cannot be used with inputs='patches': it counts distances in a text, and "
                "patches have rows and columns; use 'sinusoidal_2d' or 'learned'"
            )
        if self.position_encoding == "relative" and self.relative_num_buckets % 2:
            yield f"relative_num_buckets={self.relative_num_buckets} is odd; half serve each direction"
        if self.position_encoding == "relative" and self.relative_max_distance <= self.relative_num_buckets // 2:
            yield (
                f"relative_max_distance={self.relative_max_distance} must exceed "
                f"relative_num_buckets / 2 = {self.relative_num_buckets // 2}"
            )
        if self.share_embeddings and self.source_vocab_size not in (None, self.vocab_size):
            yield (
                f"source_vocab_size={self.source_vocab_size} differs from vocab_size={self.vocab_size}; two sizes need "
                "two embedding tables: set share_embeddings=false"
            )
        for name, factor in (("scale_embeddings", "embedding_multiplier"), ("scale_logits", "logits_multiplier")):
            if getattr(self, name) and getattr(self, factor) != 1:
                yield (
                    f"{factor}={getattr(self, factor):g} cannot be used with {name}=True, which is a factor too; set "
                    f"{name}=false"
                )
        if self.image_size % self.patch_size:
            yield f"patch_size={self.patch_size} does not divide image_size={self.image_size}; choose a divisor"
        for name in ("pixel_mean", "pixel_std"):
            try:
                numbers = parse_pixel_values(getattr(self, name), self.image_channels)
            except ValueError as error:
                yield f"{name}={getattr(self, name)!r}: {error}"
            else:
                if name == "pixel_std" and min(numbers) <= 0:
                    yield f"pixel_std={self.pixel_std!r}: expected positive numbers"
        if self.decoder_start_id >= self.vocab_size:
            yield f"decoder_start_id={self.decoder_start_id} is outside vocab_size={self.vocab_size}"
        for name in ("num_encoder_layers", "num_decoder_layers"):
            if self.architecture in TRANSFORMERS and not getattr(self, name):
                yield f"{name}=0: only architecture='{RECURRENT}' has stacks without layers; expected at least 1"
        if self.mixer != ATTENTION and self.architecture != "decoder_only":
            yield (
                f"mixer='{self.mixer}' cannot be used with architecture='{self.architecture}': it reads in one "
                "direction, and has no cross-attention beside it; use architecture='decoder_only'"
            )
        if self.feed_forward == "experts" and self.experts_per_token > self.num_experts:
            yield (
                f"experts_per_token={self.experts_per_token} exceeds num_experts={self.num_experts}; a token cannot "
                "have more experts than there are"
            )
        if self.architecture == RECURRENT:
            yield from recurrent_problems(self)
        yield from layer_problems(self)

    def _residual_problems(self) -> Iterator[str]:
        """Yield what is wrong with the fields of the residual stream."""
        place = f"norm_position='{self.norm_position}'"
        if self.has_norms_over_batch:
            plain = {"norm_position": ("post", "pre"), "residual_scale": ("none",), "residual_lambdas": (False,)}
            for name in [name for name, values in plain.items() if getattr(self, name) not in values]:
                yield (
                    f"norm='{self.norm}' cannot be used with {name}={getattr(self, name)!r}: no work has studied them "
                    "together; use norm='layernorm' or 'rmsnorm'"
                )
        if self.residual_lambdas_init != "identity" and not self.residual_lambdas:
            yield (
                f"residual_lambdas_init='{self.residual_lambdas_init}' has no effect with residual_lambdas=False; set "
                "residual_lambdas=true"
            )
        outside = outside_object(self, "norm_position")
        if self.zero_init_outputs and (self.norm_position in INSIDE_NORMS if outside is None else outside.inside):
            yield (
                f"zero_init_outputs=True cannot be used with {place}: it normalises the output of a sub-layer, and the "
                "derivative of a norm at 0 is 1 / sqrt(norm_epsilon)"
            )
        if self.zero_init_outputs and self.residual_scale != "none" and self.residual_scale_init == 0:
            yield (
                "zero_init_outputs=True cannot be used with residual_scale_init=0.0: each has a gradient of zero while "
                "the other is zero, so no layer would ever train"
            )
        norm = outside_object(self, "norm")
        if norm is not None and norm.function is None and self.norm_scale != "learned":
            yield (
                f"norm_scale='{self.norm_scale}' cannot be used with norm='{self.norm}', a module with gains of its own"
            )
        if outside is not None and not str(outside.module.__module__).startswith("transformer_jax."):
            computed = {"residual_scale": "none", "residual_multiplier": 1.0, "parallel": "none"}
            for name in [name for name, off in computed.items() if getattr(self, name) != off]:
                yield f"{name}={getattr(self, name)!r} cannot be used with {place}, which computes its sums itself"


DROPOUT_RATES = {f.name: f.metadata["place"] for f in dataclasses.fields(ModelConfig) if "place" in f.metadata}
"""The fields that are rates of dropout, and the place of each: its field of `nn.dropout.DropoutRates`."""
