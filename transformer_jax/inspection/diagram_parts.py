"""The parts of a diagram of a model, as its config and the tables of blocks say.

A part names the parameters that it owns, so that a test can compare a diagram with the parameters of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.config import (
    ATTENTION,
    ExperimentConfig,
    ModelConfig,
    layer_configs,
    layer_letters,
    layer_numbers,
    parse_kinds,
)
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.nn.attention import divides_by_root
from transformer_jax.nn.embeddings import TokenEmbedding
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.feed_forwards import FEED_FORWARDS
from transformer_jax.nn.heads import MaskedLMHead, SequenceHead, TokenHead
from transformer_jax.nn.layer import PARALLEL
from transformer_jax.nn.mixers import MIXERS
from transformer_jax.nn.norms import NORMS
from transformer_jax.nn.patches import INPUTS, PatchEmbedding
from transformer_jax.nn.positions import ENCODINGS
from transformer_jax.nn.residual import NORM_POSITIONS, has_embedding_norm
from transformer_jax.nn.stack import LAMBDAS
from transformer_jax.tasks.batches.pair_rows import reads_source_two_way
from transformer_jax.tasks.task import TASKS

TIMES = "\u00d7"


class Box(NamedTuple):
    """A block with its name and what its fields say.

    kind: a key of `drawing.SHADES`. owns: beginnings of the paths of its parameters. reads_memory: whether it reads the
    output of the encoder.
    """

    title: str
    lines: tuple[str, ...] = ()
    kind: str = "plain"
    owns: tuple[str, ...] = ()
    reads_memory: bool = False


class Residual(NamedTuple):
    """Blocks with a connection around them: their output is added to their input."""

    blocks: tuple[Box, ...]


class Repeat(NamedTuple):
    """Parts that are repeated, each time with parameters of their own; `label` says how often."""

    label: str
    parts: tuple[Part, ...]


Part = Box | Residual | Repeat


@dataclasses.dataclass(frozen=True)
class Column:
    """Parts from the first, which is drawn at the bottom, to the last. reads: what goes into the first part."""

    name: str
    reads: str
    parts: tuple[Part, ...]


def lines(*texts: object) -> tuple[str, ...]:
    """Return the texts; `condition and text` leaves a text out."""
    return tuple(text for text in texts if isinstance(text, str) and text)


def dropout(rate: float | None) -> Iterator[Box]:
    """Yield a block for dropout; nothing without."""
    if rate:
        yield Box(f"dropout {rate:g}", kind="dropout")


def norm(config: ModelConfig, owner: str, of: object = None) -> Iterator[Box]:
    """Yield a block for a norm whose parameters are at `owner`; nothing if the model has no norms.

    Args: of: what it normalises, if the picture does not say it.
    """
    kind = NORMS[config.norm]
    if kind.function is not None or kind.module is not None:
        gains = {"none": "no gains", "offset": "gains 1 + w"}.get(config.norm_scale)
        no_bias = kind.has_bias and not config.use_bias and "no bias"
        details = lines(kind.over_batch and "over the batch", gains, no_bias, of)
        yield Box(config.norm, details, "norm", (owner,))


def embedding(config: ModelConfig, rows: int, owner: str, name: str, *more: str) -> Box:
    """Return the block of a table of token embeddings."""
    scale = config.scale_embeddings and f"{TIMES} √{config.emb_dim}"
    factor = _multiplied(config.embedding_multiplier)
    return Box(name, lines(f"{rows:,} {TIMES} {config.emb_dim:,}", scale, factor, *more), "embedding", (owner,))


def vocabulary(config: ModelConfig, owner: str, width: int) -> Box:
    """Return the block that maps vectors of some width to logits over the vocabulary."""
    owns = lines(not config.tie_output and f"{owner}/kernel", config.output_bias and f"{owner}/bias")
    details = lines(
        config.scale_logits and f"input / √{config.emb_dim}",
        f"{width:,} → {config.vocab_size:,}",
        "tied to the embedding" if config.tie_output else "a matrix of its own",
        config.output_bias and "with bias",
        _multiplied(config.logits_multiplier),
        config.output_logit_cap is not None and f"z → c tanh(z / c), c = {config.output_logit_cap:g}",
    )
    return Box("logits", details, "output", owns)


def _multiplied(factor: float) -> str | bool:
    return factor != 1 and f"{TIMES} {factor:g}"


def output_parts(config: ExperimentConfig, width: int) -> Iterator[Box]:
    """Yield the blocks between the last stack and the outputs: the head of the task, or logits over the vocabulary."""
    head = TASKS[config.task.name].head(config.task, config.model)
    if head is None:
        yield vocabulary(config.model, "output", width)
    elif type(head) in HEADS:
        yield from HEADS[type(head)](head, width)
    else:
        yield Box(type(head).__name__, ("head of the task",), "output", ("head/",))


def _labels(head: Any, width: int, owner: str) -> Iterator[Box]:
    yield from dropout(head.config.head_dropout_rate)
    yield Box("logits of labels", (f"{width:,} → {head.num_labels:,}",), "output", (owner,))


def _masked_lm_head(head: Any, width: int) -> Iterator[Box]:
    config = head.config
    function = _name(ACTIVATIONS[config.activation].function)
    bias = config.use_bias and "with bias"
    details = lines(f"{width:,} → {width:,}", f"{function}(x W{' + b' if bias else ''})")
    yield Box("dense", details, "feed_forward", ("head/transform/",))
    yield from norm(config, "head/norm/")
    yield vocabulary(config, "head/output", width)


def _token_head(head: Any, width: int) -> Iterator[Box]:
    yield from _labels(head, width, "head/output/")


def _sequence_head(head: Any, width: int) -> Iterator[Box]:
    yield Box(f"pooling: {head.pooling}", kind="output")
    if head.has_pooler:
        yield Box("pooler", (f"tanh(x W + b), {width:,} → {width:,}",), "feed_forward", ("head/pooler/",))
    yield from _labels(head, width, "head/output/")


HEADS: dict[type, Callable[[Any, int], Iterator[Box]]] = {
    MaskedLMHead: _masked_lm_head,
    TokenHead: _token_head,
    SequenceHead: _sequence_head,
}
"""Functions of (head, width of its input) that draw a head; another one is a box with the name of its class."""


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "f").strip("_")


def transformer_columns(config: ExperimentConfig) -> list[Column]:
    """Return one column for every stack of a Transformer, the encoder first."""
    model = config.model
    masks = _masks(model)
    stacks = [stack for stack in ("encoder", "decoder") if f"{stack} self-attention" in masks]
    columns = []
    for stack in stacks:
        parts: list[Part] = [
            *_input_parts(config, stack, stacks),
            *stack_parts(config, stack, cross_attends=stack == "decoder" and "cross-attention" in masks),
        ]
        if stack == stacks[-1]:
            parts += output_parts(config, model.emb_dim)
        columns.append(Column(stack, inputs_of(model, stack, is_pair=len(stacks) > 1), tuple(parts)))
    return columns


def inputs_of(config: ModelConfig, stack: str, is_pair: bool) -> str:
    """Return what a stack reads, in words; is_pair: the model has an encoder and a decoder."""
    if stack == "encoder":
        return f"{'source' if is_pair else 'input'}: {config.inputs}"
    return f"{'target' if is_pair else 'tokens'}, shifted by one"


def _input_parts(config: ExperimentConfig, stack: str, stacks: list[str]) -> Iterator[Part]:
    model = config.model
    is_source = stack == "encoder"
    make = INPUTS[model.inputs] if is_source else TokenEmbedding
    if make is TokenEmbedding:
        yield token_embedding(model, is_source, is_pair=len(stacks) > 1)
    elif make is PatchEmbedding:
        yield from _patches(model)
    else:
        yield Box(f"{model.inputs} embedding", kind="embedding", owns=("embedding/",))
    encoding = ENCODINGS[model.position_encoding]
    if encoding.added is not None:
        rows = encoding.has_table and f"learned table, {model.num_positions:,} {TIMES} {model.emb_dim:,}"
        owns = (f"{stack}/position_embedding/",) if encoding.has_table else ()
        yield Box(f"+ {model.position_encoding} positions", lines(rows), "embedding", owns)
    if is_source and model.token_types:
        yield Box(
            "+ token types",
            (f"{model.token_types} {TIMES} {model.emb_dim:,}",),
            "embedding",
            ("encoder/type_embedding/",),
        )
    if has_embedding_norm(model):
        yield from norm(model, f"{stack}/embedding_norm/")
    yield from dropout(model.embedding_dropout_rate)


def token_embedding(config: ModelConfig, is_source: bool, is_pair: bool) -> Box:
    """Return the block of the embedding of a stack.

    Args:
      is_source: of the encoder. is_pair: the model has an encoder and a decoder, which may share a table.
    """
    if not is_pair:
        return embedding(config, config.vocab_size, "embedding/", "token embedding")
    if config.share_embeddings:
        return embedding(config, config.vocab_size, "embedding/", "token embedding", "shared: source, target")
    if is_source:
        return embedding(config, config.source_vocab_size, "source_embedding/", "source embedding")
    return embedding(config, config.vocab_size, "embedding/", "target embedding")


def _patches(config: ModelConfig) -> Iterator[Box]:
    size, image, channels = config.patch_size, config.image_size, config.image_channels
    count = (image // size) ** 2
    details = lines(
        f"image {image} {TIMES} {image} {TIMES} {channels}",
        f"{count:,} of {size} {TIMES} {size} {TIMES} {channels}",
        f"linear map → {config.emb_dim:,}",
        not config.use_bias and "no bias",
    )
    yield Box("patches", details, "embedding", ("embedding/projection/",))
    if config.class_token:
        yield Box("class token in front", (f"{count + 1:,} vectors",), "embedding", ("embedding/class_token",))


def stack_parts(config: ExperimentConfig, stack: str, cross_attends: bool) -> Iterator[Part]:
    """Yield the layers of a stack, its final norm and its dropout."""
    model = config.model
    layers = layer_configs(model, stack, getattr(model, f"num_{stack}_layers"))
    for path, numbers in layer_numbers(model).items():
        if not path.startswith(f"{stack}/"):
            continue
        first = layers[numbers[0]]
        mixer, feed_forward = MIXERS[first.mixer].name, FEED_FORWARDS[first.feed_forward].name
        draw = self_attention(config, stack, path) if first.mixer == ATTENTION else _other_mixer(first, path)
        lambdas = tuple(f"{stack}/{name}/" for name in LAMBDAS)
        sublayers: list[list[Part]] = [
            [Box("r x + s x₀", ("x₀: input of the layers",), owns=lambdas)] if model.residual_lambdas else [],
            _sublayer(model, stack, draw, f"{path}/{mixer}_residual/"),
            *(
                [_sublayer(model, stack, _cross_attention(model, path), f"{path}/cross_attention_residual/")]
                if cross_attends
                else []
            ),
            _sublayer(model, stack, _feed_forward(first, path), f"{path}/{feed_forward}_residual/"),
        ]
        if PARALLEL[model.parallel]:
            sublayers[1:] = [_in_parallel(model, [part.blocks for [part] in sublayers[1:]])]  # ty: ignore
        title = counted(len(numbers))
        if len(numbers) < len(layers):
            title += f": {', '.join(map(str, numbers))}"
        yield Repeat(title, tuple(part for sublayer in sublayers for part in sublayer))
    if NORM_POSITIONS[model.norm_position].final:
        yield from norm(model, f"{stack}/final_norm/")
    yield from dropout(model.final_dropout_rate)


def counted(layers: int) -> str:
    """Return `6 layers`."""
    return f"{layers} layer{'s' if layers > 1 else ''}"


def _sublayer(config: ModelConfig, stack: str, block: Box, residual: str) -> list[Part]:
    place = NORM_POSITIONS[config.norm_position]
    # A place of norms from outside may have other parameters.
    owner = f"{residual}norm/" if NORM_POSITIONS.is_built_in(config.norm_position) else residual
    of_sum = place.scales and f"of {place.scales(config, stack).stream:.4g} x + f(x)"
    norms, after = norm(config, owner), norm(config, owner, of_sum)
    inside = norm(config, f"{residual}output_norm/") if place.inside else ()
    factors = list(_factors(config, residual))
    blocks = (*(norms if place.before else ()), block, *inside, *factors, *dropout(config.dropout_rate))
    return [Residual(blocks), *(after if place.after else ())]


def _factors(config: ModelConfig, residual: str) -> Iterator[Box]:
    """Yield blocks for the factors of the output of a sub-layer; residual: beginning of the paths of its parameters."""
    if config.residual_scale != "none":
        what = {"scalar": "a number", "vector": f"{config.emb_dim:,} numbers"}[config.residual_scale]
        yield Box(f"{TIMES} {what}", (f"initially {config.residual_scale_init:g}",), owns=(f"{residual}scale",))
    if config.residual_multiplier != 1:
        yield Box(f"{TIMES} {config.residual_multiplier:g}")


def _in_parallel(config: ModelConfig, branches: Sequence[tuple[Box, ...]]) -> list[Part]:
    """Return two sub-layers that read the same input as one, block by block."""
    blocks = []
    for first, second in zip(*branches, strict=True):
        if first.kind == "norm":
            owns = (*first.owns, *second.owns) if PARALLEL[config.parallel] == 2 else first.owns
            each = ("one for each part",) if PARALLEL[config.parallel] == 2 else ()
            blocks.append(first._replace(lines=(*first.lines, *each), owns=owns))
        elif first.owns:
            title = first.title if first.title == second.title else f"{first.title} + {second.title}"
            both = first.lines if first.lines == second.lines else (*first.lines, *second.lines)
            blocks.append(first._replace(title=title, lines=both, owns=(*first.owns, *second.owns)))
        else:
            blocks.append(first)
    return [Residual(tuple(blocks))]


def self_attention(config: ExperimentConfig, stack: str, path: str) -> Box:
    """Return the block of the attention of a stack to its own tokens; path: of the parameters of its layers."""
    model = config.model
    encoding, owns = ENCODINGS[model.position_encoding], [f"{path}/self_attention/"]
    rotated = bias = None
    if encoding.rotate is not None:
        rotated = f"Q, K: {model.position_encoding}, base {model.rotary_base:,g}"
    if encoding.bias is not None:
        buckets = f", {model.relative_num_buckets} buckets to {model.relative_max_distance}"
        is_own = model.position_encoding == "relative"
        bias = f"B: {model.position_encoding}{buckets if is_own else ''}"
        owns.append(f"{stack}/relative_bias/")
    details = lines(
        *_mask_lines(config, _masks(model)[f"{stack} self-attention"]),
        *_heads(model, bias is not None),
        *_named_values(model),
        rotated,
        bias,
        *_attention_end(model),
        *_kind_lines(model, stack),
    )
    return Box("self-attention", details, "attention", tuple(owns))


def _other_mixer(config: ModelConfig, path: str) -> Box:
    """Return the block of a mixer without attention; path: of the parameters of its layers."""
    owns = (f"{path}/{MIXERS[config.mixer].name}/",)
    if not MIXERS.is_built_in(config.mixer):
        return Box(config.mixer, ("from outside the package",), "attention", owns)
    heads = f"{config.num_heads} heads, d_k = {config.head_dim}, d_v = {config.value_head_dim}"
    details = lines("a state in place of keys", "causal", heads, _biases(config.use_bias, config.use_bias))
    return Box(config.mixer.replace("_", " "), details, "attention", owns)


def _masks(config: ModelConfig) -> Mapping[str, str]:
    """Return the kind of mask of every attention by name, as if all layers had attention without fields of its own."""
    own = {field.name: field.default for field in dataclasses.fields(config) if field.metadata.get("of_attention")}
    plain = dataclasses.replace(config, layer_pattern="", layer_kinds="", mixer=ATTENTION, **own)
    return ARCHITECTURES[config.architecture].attention_kinds(plain)


def _named_values(config: ModelConfig) -> Iterator[str]:
    """Yield `NAME=VALUE` for fields of attention that are not at their defaults and that no other line says."""
    for field in dataclasses.fields(config):
        if field.metadata.get("of_attention") and (value := getattr(config, field.name)) != field.default:
            yield f"{field.name}={value}"
    if config.norm == "none" and config.norm_scale != "learned":  # no other norm says it
        yield f"norm_scale={config.norm_scale}"


def _own_values(config: ModelConfig, choice: str) -> Iterator[str]:
    """Yield `NAME=VALUE` for the fields that are read with the value of a choice in this config, but not with all."""
    chosen = getattr(config, choice.removeprefix("model."))
    for field in dataclasses.fields(config):
        if chosen in field.metadata.get("read_by", {}).get(choice, ()):
            yield f"{field.name}={getattr(config, field.name)}"


def _kind_lines(config: ModelConfig, stack: str) -> Iterator[str]:
    """Yield the letters of the layers of a stack, and what each of these letters changes; nothing for equal layers."""
    letters = layer_letters(config, stack, getattr(config, f"num_{stack}_layers"))
    if letters:
        yield f"layers {letters if len(letters) <= 16 else config.layer_pattern}"
    for letter, values in parse_kinds(type(config), config.layer_kinds).items():
        if letter in letters:
            yield f"{letter}: " + (", ".join(f"{name}={value}" for name, value in values.items()) or "as above")


def _cross_attention(config: ModelConfig, layers: str) -> Box:
    details = ("K, V from the encoder", *_heads(config, False), *_attention_end(config))
    return Box("cross-attention", details, "attention", (f"{layers}/cross_attention/",), reads_memory=True)


def _mask_lines(config: ExperimentConfig, mask: str) -> tuple[str, ...]:
    """Return the words for a kind of mask: `masks.AttentionMask.kind`, or `none`."""
    if mask != "causal":
        return ("two-way",) if mask in ("lengths", "none") else (mask,)
    if config.task.prefix != "none":
        return ("causal,", f"two-way in the prefix ({config.task.prefix})")
    if config.model.architecture == "decoder_only" and reads_source_two_way(config.task):
        return ("causal,", "two-way in the source")
    return ("causal",)


def _heads(config: ModelConfig, has_bias: bool) -> tuple[str, ...]:
    fewer = config.num_kv_heads != config.num_heads
    scale = f" / √{config.head_dim}" if divides_by_root(config) else ""
    factor = "" if config.attention_multiplier is None else f"{config.attention_multiplier:g} "
    values = f", d_v = {config.value_head_dim}" if config.value_head_dim != config.head_dim else ""
    return lines(
        f"{config.num_heads} heads, d_k = {config.head_dim}{values}",
        fewer and f"{config.num_kv_heads} for keys and values",
        f"softmax({factor}Q Kᵀ{scale}{' + B' if has_bias else ''}) V",
    )


def _attention_end(config: ModelConfig) -> tuple[str, ...]:
    rate = config.attention_dropout_rate
    return lines(_biases(config.qkv_bias, config.use_bias), rate and f"dropout {rate:g} on weights")


def _biases(of_inputs: bool, of_output: bool) -> str:
    """Return the words for biases of queries, keys and values, and of the output."""
    if of_inputs == of_output:
        return "biases" if of_output else "no biases"
    return "biases of Q, K, V alone" if of_inputs else "a bias of the output alone"


def _feed_forward(config: ModelConfig, layers: str) -> Box:
    owner = FEED_FORWARDS[config.feed_forward].name
    owns = (f"{layers}/{owner}/",)
    if not FEED_FORWARDS.is_built_in(config.feed_forward):
        return Box(config.feed_forward, ("from outside the package",), "feed_forward", owns)
    activation, rate = ACTIVATIONS[config.activation], config.activation_dropout_rate
    name, biased = _name(activation.function), config.use_bias
    hidden = f"{name}(x W₁ + b₁)" if biased else f"{name}(x W₁)"
    if activation.gated:
        linear = "(x W₁ + b₁)" if biased else "x W₁" if activation.linear is None else "(x W₁)"
        linear = linear if activation.linear is None else f"{_name(activation.linear)}{linear}"
        hidden = f"({name}(x G + g) ⊙ {linear})" if biased else f"({name}(x G) ⊙ {linear})"
    formula = f"{hidden} W₂{' + b₂' if biased else ''}"
    details = lines(
        *_own_values(config, "model.feed_forward"),
        f"{config.emb_dim:,} → {config.mlp_dim:,} → {config.emb_dim:,}",
        name != config.activation and f"{config.activation}{', gated' if activation.gated else ''}",
        formula,
        rate and f"dropout {rate:g} after {name}",
    )
    return Box(owner.replace("_", "-"), details, "feed_forward", owns)


def outside_column(config: ExperimentConfig) -> Column:
    """Return one box for an architecture from outside the package, with its name and the fields that it adds."""
    model = config.model
    own = {field.name for field in dataclasses.fields(model)} - {
        field.name for field in dataclasses.fields(ModelConfig)
    }
    details = ("from outside the package", *(f"{name} = {getattr(model, name)}" for name in sorted(own)))
    return Column("architecture", "batch", (Box(model.architecture, details),))
