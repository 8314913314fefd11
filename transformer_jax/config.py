"""The experiment config: the one home of every field, its default, its meaning and its valid values.

A config travels as an `ml_collections.ConfigDict` while flags override it (`to_config_dict`) and becomes these frozen
dataclasses again before anything runs (`from_config_dict`), which validates all of it at once and then resolves the
derived defaults: fields whose default is None, such as `head_dim`, that follow from other fields.

Fields marked `hyper` are scalars that enter the compiled training step as arguments: a new value never recompiles.
For those marked `switch` as well, zero turns the feature off, and off is another program than on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.errors import ConfigError

if typing.TYPE_CHECKING:
    import ml_collections

    # None until the config is resolved, and a value for all code that is handed a config.
    DerivedInt: typing.TypeAlias = int
    DerivedFloat: typing.TypeAlias = float
    DerivedStr: typing.TypeAlias = str
else:
    DerivedInt, DerivedFloat, DerivedStr = int | None, float | None, str | None

# The ids that every tokenizer of this project reserves, in SentencePiece's order of roles.
PAD_ID, EOS_ID, UNK_ID, BOS_ID = 0, 1, 2, 3

MAX_STEPS = 2**31 - 1  # steps are counted in int32

# Fields that were called otherwise in configs of earlier versions, which checkpoints still hold.
_MOVED = {("evaluation", "max_extra_length"): ("decode", "max_extra_length")}


def _field(default: Any, doc: str, **metadata: Any) -> Any:
    return dataclasses.field(default=default, metadata={"doc": doc, **metadata})


def _choice(default: str | None, names: tuple[str, ...], doc: str) -> Any:
    return _field(default, doc, choices=names)


def _number(default: Any, doc: str, minimum: float | None = None, maximum: float | None = None, **metadata: Any) -> Any:
    """A field of a numeric type; `above` and `below` are bounds that the value must not have itself."""
    return _field(default, doc, minimum=minimum, maximum=maximum, **metadata)


def _rate(default: Any, doc: str) -> Any:
    """A probability below 1 that enters the step as an argument; zero removes the feature from the program."""
    return _number(default, doc, minimum=0.0, below=1.0, hyper=True, switch=True)


def _section(cls: type) -> Any:
    return dataclasses.field(default_factory=cls)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What the model computes. Equations stand beside the code that implements them, in `transformer_jax.nn`."""

    vocab_size: int = _number(8192, "rows of the embedding table, and the size the tokenizer is trained to", 8)
    emb_dim: int = _number(512, "model width (the paper's d_model)", 1)
    num_heads: int = _number(8, "attention heads", 1)
    num_kv_heads: DerivedInt = _number(
        None, "key/value heads; default num_heads; fewer: grouped-query attention, 1: multi-query", 1
    )
    head_dim: DerivedInt = _number(None, "width of queries and keys per head (d_k); default emb_dim / num_heads", 1)
    value_head_dim: DerivedInt = _number(None, "width of values per head (d_v); default head_dim", 1)
    mlp_dim: DerivedInt = _number(None, "feed-forward width (d_ff); default 4 * emb_dim", 1)
    num_encoder_layers: int = _number(6, "encoder layers", 1)
    num_decoder_layers: int = _number(6, "decoder layers", 1)
    max_length: int = _number(256, "capacity in positions: of a learned table, and of the decoder's cache", 2)
    norm_position: str = _choice("post", ("post", "pre"), "where a sub-layer normalises; nn/residual.py")
    norm: str = _choice("layernorm", ("layernorm", "rmsnorm"), "which normalisation; nn/norms.py")
    norm_epsilon: float = _number(1e-6, "added to the variance before the square root", 0.0)
    position_encoding: str = _choice(
        "sinusoidal", ("sinusoidal", "learned", "rotary", "relative", "none"), "how order is told; nn/positions.py"
    )
    rotary_base: float = _number(10_000.0, "slowest wavelength of `rotary` is 2 pi times this", 1.0)
    relative_num_buckets: int = _number(32, "distance buckets of `relative`", 4)
    relative_max_distance: int = _number(128, "distances from here on share the last bucket of `relative`", 2)
    activation: str = _choice(
        "relu", ("relu", "gelu", "gelu_tanh", "swiglu", "geglu"), "feed-forward activation; nn/feed_forward.py"
    )
    use_bias: bool = _field(True, "biases in projections, feed-forward and LayerNorm")
    attention_scale: bool = _field(True, "divide attention logits by sqrt(head_dim)")
    share_embeddings: bool = _field(True, "one embedding table for source and target")
    tie_output: bool = _field(True, "the target embedding table is the output projection too")
    scale_embeddings: bool = _field(True, "multiply embeddings by sqrt(emb_dim)")
    dropout_rate: float = _rate(0.1, "dropout on every sub-layer's output before it joins the residual (P_drop)")
    embedding_dropout_rate: DerivedFloat = _rate(None, "dropout on embeddings + positions; default dropout_rate")
    attention_dropout_rate: float = _rate(0.0, "dropout on attention weights")
    activation_dropout_rate: float = _rate(0.0, "dropout on the feed-forward activation")
    decoder_start_id: int = _number(BOS_ID, "first decoder input", 0)
    dtype: str = _choice("float32", ("float32", "bfloat16"), "type of the computation; parameters stay float32")
    scan_layers: bool = _field(False, "compile one layer and loop over it: faster to compile, slower to run")

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which corpus, how it is cut into pieces and how pieces are cut into batches."""

    source: str = _choice("embedded", ("embedded", "text"), "where sentence pairs come from; data/sources")
    source_locale: str = _field("en", "locale of the inputs; for `text` the files' suffix")
    target_locale: str = _field("de", "locale of the targets; for `text` the files' suffix")
    num_train_pairs: int = _number(200_000, "training pairs of the embedded corpus", 100)
    num_eval_pairs: int = _number(2_000, "pairs of each other split of the embedded corpus", 10)
    dir: str = _field("", "folder of the `text` files")
    train_files: str = _field("train", "`text`: DIR/PREFIX.LOCALE, plain or .gz, of the training split")
    valid_files: str = _field("valid", "`text`: the same of the validation split")
    test_files: str = _field("test", "`text`: the same of the test split")
    tokenizer: str = _choice("unigram", ("unigram", "bpe"), "SentencePiece model type")
    tokenizer_pairs: int = _number(200_000, "at most this many training pairs train the tokenizer", 100)
    max_length: int = _number(128, "training pairs with a longer side, in pieces with eos, are left out and counted", 2)
    tokens_per_batch: int = _number(4096, "padded tokens of a batch, at most: pairs times the longer side", 16)
    row_multiple: int = _number(8, "rows of a batch are a multiple of this, so that devices can divide them", 1)
    num_buckets: int = _number(6, "shapes that training batches are padded to, at most", 1)
    cache_dir: str = _field("", "token cache; default: inside the work directory")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam with a warm-up schedule (Vaswani et al. 2017, section 5.3); training/optimizers.py."""

    schedule: str = _choice(
        "inverse_sqrt",
        ("inverse_sqrt", "cosine", "linear", "constant", "none"),
        "learning rate after the warm-up; `none` is a constant without warm-up",
    )
    learning_rate: DerivedFloat = _number(
        None, "peak learning rate; default (emb_dim * warmup_steps)^-0.5, the paper's", 0.0, hyper=True
    )
    warmup_steps: int = _number(4000, "steps of linear warm-up from 0 to the peak", 0, MAX_STEPS, hyper=True)
    decay_steps: DerivedInt = _number(
        None, "step at which `cosine` and `linear` reach their end; default num_train_steps", 1, MAX_STEPS, hyper=True
    )
    end_fraction: float = _number(0.0, "`cosine` and `linear` end at this fraction of the peak", 0.0, 1.0, hyper=True)
    beta1: float = _number(0.9, "Adam's decay of the first moment", 0.0, below=1.0, hyper=True)
    beta2: float = _number(0.98, "Adam's decay of the second moment", 0.0, below=1.0, hyper=True)
    epsilon: float = _number(1e-9, "Adam's epsilon, outside the square root", 1e-30, hyper=True)
    weight_decay: float = _number(
        0.0, "decoupled weight decay, times the learning rate; kernels only", 0.0, hyper=True, switch=True
    )
    clip_norm: float = _number(
        1.0, "gradients are scaled down to this global norm; 0 turns it off", 0.0, hyper=True, switch=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The loop: how long, how often, what is kept."""

    num_train_steps: int = _number(100_000, "optimizer updates", 1, MAX_STEPS)
    accumulation_steps: int = _number(
        1, "gradient accumulation: parts a batch is computed in, in turn; the update stays the same", 1
    )
    label_smoothing: float = _rate(0.1, "mass spread over the vocabulary in the loss (epsilon_ls)")
    log_every_steps: int = _number(100, "updates between two lines of metrics", 1)
    eval_every_steps: int = _number(1000, "updates between two validations, on the split `valid`", 1)
    checkpoint_every_steps: int = _number(1000, "updates between two checkpoints", 1)
    keep_last: int = _number(3, "newest checkpoints kept", 1)
    keep_best: int = _number(1, "best checkpoints kept besides, by best_metric, of those that fall on a validation", 0)
    best_metric: str = _choice(
        "loss",
        ("loss", "accuracy", "exact_match", "sacrebleu", "chrf"),
        "validation metric that ranks checkpoints; the last three translate the split at every evaluation",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What a checkpoint is scored with."""

    tokens_per_batch: int = _number(8192, "the same as data.tokens_per_batch, in evaluation and translation", 16)
    average_checkpoints: int = _number(1, "newest checkpoints whose parameters are averaged", 1)


# Samples of an input share its row of the cache, and each looks past the tokens of the others: W of them cost W^2.
SAMPLES_TOGETHER = 8

# Fields of DecodeConfig that only one method reads.
_SEARCH_FIELDS = ("beam_size", "length_penalty", "length_penalty_alpha", "early_stop", "end_among", "num_best")
_SAMPLE_FIELDS = ("temperature", "top_k", "top_p", "min_p", "num_samples", "seed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How text is generated; the rules are stated in decoding/beam_search.py and decoding/sampling.py."""

    method: str = _choice("search", ("search", "sample"), "the best output that a beam search finds, or drawn ones")
    beam_size: int = _number(1, "hypotheses per input; 1 is greedy search", 1)
    length_penalty: DerivedStr = _choice(
        None,
        ("none", "gnmt", "average"),
        "what log P is divided by: 1, ((5 + length) / 6)^alpha, length^alpha; default gnmt, and none for greedy search",
    )
    length_penalty_alpha: DerivedFloat = _number(None, "its alpha; default 0.6 for gnmt, 1 for average", 0.0)
    early_stop: str = _choice(
        "bound", ("bound", "first"), "done once no live hypothesis can win, or once beam_size have ended"
    )
    end_among: str = _choice(
        "beam",
        ("beam", "candidates"),
        "an end mark ends a hypothesis if among the best beam_size continuations, or the best 2 * beam_size",
    )
    num_best: int = _number(1, "outputs per input that a search returns, at most beam_size", 1)
    temperature: float = _number(1.0, "`sample`: logits are divided by this", 1e-6)
    top_k: int | None = _number(None, "`sample`: among the k likeliest tokens only; default all", 1)
    top_p: float = _number(
        1.0, "`sample`: among the likeliest tokens with this mass only (nucleus)", above=0.0, maximum=1.0
    )
    min_p: float = _number(0.0, "`sample`: among tokens at least this times as likely as the likeliest only", 0.0, 1.0)
    num_samples: int = _number(1, "`sample`: outputs per input", 1)
    seed: int = _number(0, "`sample`: what is drawn follows from it and from the number of the input", 0, 2**31 - 1)
    repetition_penalty: float = _number(1.0, "held against tokens that an output has already; 1 is none", above=0.0)
    max_extra_length: int = _number(50, "an output has at most its source's pieces plus this many", 0)
    max_length: int | None = _number(None, "an output has at most this many pieces, in place of max_extra_length", 1)
    min_length: int = _number(0, "pieces before the end mark, at least", 0)
    at_limit: str = _choice("cut", ("cut", "end"), "an output that comes to its limit is cut there, or ended")
    forbidden_ids: str = _field("", "ids that no output has, separated by commas")
    prefix_ids: str = _field("", "ids that every output begins with, separated by commas")

    def resolved(self) -> DecodeConfig:
        """With the defaults that follow from other fields.

        A resolved config leaves them open, so that those of a checkpoint follow what its evaluation overrides.
        """
        name = self.length_penalty or ("none" if self.beam_size == 1 else "gnmt")
        alpha = {"none": 0.0, "gnmt": 0.6, "average": 1.0}[name]
        if self.length_penalty_alpha is not None:
            alpha = self.length_penalty_alpha
        return dataclasses.replace(self, length_penalty=name, length_penalty_alpha=alpha)

    @property
    def num_hypotheses(self) -> int:
        """What grows side by side for every input."""
        return min(self.num_samples, SAMPLES_TOGETHER) if self.method == "sample" else self.beam_size

    @property
    def num_outputs(self) -> int:
        """Outputs per input."""
        return self.num_samples if self.method == "sample" else self.num_best

    def problems(self) -> Iterator[str]:
        yield from self._idle_fields()
        if self.num_best > self.beam_size:
            yield f"num_best={self.num_best} exceeds beam_size={self.beam_size}"
        if self.max_length is not None and self.min_length > self.max_length:
            yield f"min_length={self.min_length} exceeds max_length={self.max_length}"
        for name in ("forbidden_ids", "prefix_ids"):
            text = getattr(self, name)
            try:
                parse_ids(text)
            except ValueError:
                yield f"{name}={text!r}: expected ids separated by commas"
                continue
            if name == "prefix_ids" and {PAD_ID, EOS_ID} & {*parse_ids(text)}:
                yield f"prefix_ids={text}: no output has padding ({PAD_ID}) or an end mark ({EOS_ID}) at its beginning"

    def _idle_fields(self) -> Iterator[str]:
        """Fields that are set and that the method does not read."""
        defaults, other = DecodeConfig, _SEARCH_FIELDS if self.method == "sample" else _SAMPLE_FIELDS
        for name in other:
            if getattr(self, name) != getattr(defaults, name):
                yield f"{name}={getattr(self, name)} is not read with method='{self.method}'"
        if self.method == "search" and self.resolved().length_penalty == "none" and self.length_penalty_alpha:
            yield (
                f"length_penalty_alpha={self.length_penalty_alpha} is not read with length_penalty='none', "
                "which is the default with beam_size=1"
            )


def parse_ids(text: str) -> tuple[int, ...]:
    """ "4,17" -> (4, 17); raises ValueError for anything that is no list of ids."""
    ids = tuple(int(part) for part in text.split(",")) if text.strip() else ()
    if any(i < 0 for i in ids):
        raise ValueError(text)
    return ids


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How one step runs on many devices; parallel/launchers.py."""

    launcher: str = _choice("jit", ("jit", "shard_map", "pmap"), "what compiles and distributes the training step")
    num_devices: int | None = _number(None, "devices that share a batch; default all", 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Everything that makes a run."""

    seed: int = _number(0, "parameters, data order and dropout follow from it", 0, 2**31 - 1, hyper=True)
    model: ModelConfig = _section(ModelConfig)
    data: DataConfig = _section(DataConfig)
    optimizer: OptimizerConfig = _section(OptimizerConfig)
    training: TrainingConfig = _section(TrainingConfig)
    evaluation: EvaluationConfig = _section(EvaluationConfig)
    decode: DecodeConfig = _section(DecodeConfig)
    parallel: ParallelConfig = _section(ParallelConfig)

    def resolved(self) -> ExperimentConfig:
        """Replaces every None by what it is derived from; raises ConfigError with every problem of the config."""
        if problems := problems_of(self):
            raise config_error(problems)
        model, optimizer = self.model.resolved(), self.optimizer
        if optimizer.learning_rate is None:
            optimizer = dataclasses.replace(
                optimizer, learning_rate=(model.emb_dim * max(optimizer.warmup_steps, 1)) ** -0.5
            )
        if optimizer.decay_steps is None:
            optimizer = dataclasses.replace(optimizer, decay_steps=self.training.num_train_steps)
        return dataclasses.replace(self, model=model, optimizer=optimizer)

    def problems(self) -> Iterator[str]:
        """What is wrong between sections, as messages that name their fields in full."""
        optimizer, training, data = self.optimizer, self.training, self.data
        yield from self._decode_problems()
        if optimizer.schedule == "none" and optimizer.warmup_steps:
            yield (
                f"optimizer.warmup_steps={optimizer.warmup_steps} with schedule='none', which has no warm-up; "
                "set it to 0 or choose schedule='constant'"
            )
        if optimizer.learning_rate is None and optimizer.schedule != "inverse_sqrt":
            yield (
                f"optimizer.learning_rate is unset; only schedule='inverse_sqrt' has a default, "
                f"not '{optimizer.schedule}'"
            )
        if optimizer.learning_rate is None and not optimizer.warmup_steps:
            yield "optimizer.learning_rate is unset; its default needs warmup_steps > 0"
        decay_steps = training.num_train_steps if optimizer.decay_steps is None else optimizer.decay_steps
        if optimizer.schedule in ("cosine", "linear") and decay_steps <= optimizer.warmup_steps:
            yield (
                f"optimizer.decay_steps={decay_steps} counts from step 0 and must exceed "
                f"warmup_steps={optimizer.warmup_steps}"
            )
        if self.model.position_encoding == "learned" and data.max_length > self.model.max_length:
            yield (
                f"data.max_length={data.max_length} exceeds the learned position table, "
                f"model.max_length={self.model.max_length}"
            )
        if data.row_multiple % training.accumulation_steps:
            yield (
                f"training.accumulation_steps={training.accumulation_steps} does not divide "
                f"data.row_multiple={data.row_multiple}"
            )
        if data.row_multiple * data.max_length > data.tokens_per_batch:
            yield (
                f"data.tokens_per_batch={data.tokens_per_batch} cannot hold row_multiple={data.row_multiple} "
                f"rows of max_length={data.max_length}"
            )
        if data.source_locale == data.target_locale:
            yield f"data.source_locale and data.target_locale are both '{data.source_locale}'"
        if self.evaluation.average_checkpoints > training.keep_last:
            yield (
                f"evaluation.average_checkpoints={self.evaluation.average_checkpoints} exceeds "
                f"training.keep_last={training.keep_last}"
            )

    def _decode_problems(self) -> Iterator[str]:
        vocab_size, decode = self.model.vocab_size, self.decode
        if decode.beam_size > vocab_size:
            yield f"decode.beam_size={decode.beam_size} exceeds model.vocab_size={vocab_size}"
        if decode.max_length is not None and decode.max_length > self.model.max_length:
            yield f"decode.max_length={decode.max_length} exceeds model.max_length={self.model.max_length}"
        with contextlib.suppress(ValueError):  # what are no ids has been told by then
            for name in ("forbidden_ids", "prefix_ids"):
                for outside in sorted({i for i in parse_ids(getattr(decode, name)) if i >= vocab_size}):
                    yield f"decode.{name}: {outside} is outside model.vocab_size={vocab_size}"

    def to_config_dict(self) -> ml_collections.ConfigDict:
        """The config as flags override it: unset derived fields are typed placeholders, so that a flag can set them."""
        return _to_config_dict(self)

    @classmethod
    def from_config_dict(
        cls, values: Mapping[str, Any] | ml_collections.ConfigDict, known_problems: typing.Iterable[str] = ()
    ) -> ExperimentConfig:
        """Rebuilds, validates and resolves a config; raises ConfigError with all problems at once, the known first."""
        problems = list(known_problems)
        # A ConfigDict is no Mapping, and resolves its placeholders by to_dict.
        plain = with_moved_fields(values if isinstance(values, Mapping) else values.to_dict())
        config = _from_mapping(cls, plain, "", problems)
        problems += problems_of(config)
        if problems:
            raise config_error(problems)
        return config.resolved()

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """The evaluated annotation of every field of a config class."""
    return typing.get_type_hints(cls)


def base_type(annotation: Any) -> type:
    """`int` for both `int` and `int | None`."""
    if isinstance(annotation, types.UnionType):
        return next(a for a in typing.get_args(annotation) if a is not type(None))
    return annotation


def walk(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yields (dotted name, field, value) of every leaf field."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field, value


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """' (did you mean X?)', or nothing if no known name is near."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{matches[0]}'?)" if matches else ""


def problems_of(config: ExperimentConfig) -> list[str]:
    """Every problem of a config, as messages that name the field, the value and what was expected."""
    problems = []
    hints = {type(config): "", **{type(s): f"{n}." for n, s in _sections(config)}}
    for cls, prefix in hints.items():
        section = config if not prefix else getattr(config, prefix[:-1])
        for field in dataclasses.fields(cls):
            value = getattr(section, field.name)
            if not dataclasses.is_dataclass(value):
                problem = _value_problem(field, field_types(cls)[field.name], value)
                if problem:
                    problems.append(f"{prefix}{field.name}={value!r}: {problem}")
    # Relations between fields only make sense once each value does.
    wrong = {problem.partition("=")[0].rpartition(".")[0] for problem in problems}
    for name, section in _sections(config):
        if name not in wrong and hasattr(section, "problems"):
            problems += [f"{name}.{p}" for p in section.problems()]
    return problems if wrong else [*problems, *config.problems()]


def _sections(config: ExperimentConfig) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield field.name, value


def _value_problem(field: dataclasses.Field, annotation: Any, value: Any) -> str | None:
    """What is wrong with one value by itself."""
    meta = field.metadata
    if value is None and base_type(annotation) is not annotation:
        return None
    expected = base_type(annotation)
    if type(value) is not expected:
        return f"expected {expected.__name__}, got {type(value).__name__}"
    if "choices" in meta and value not in meta["choices"]:
        return f"expected one of {', '.join(meta['choices'])}{nearest(value, meta['choices'])}"
    if expected is float and not math.isfinite(value):
        return "expected a finite number"
    if meta.get("minimum") is not None and value < meta["minimum"]:
        return f"expected at least {meta['minimum']}"
    if meta.get("maximum") is not None and value > meta["maximum"]:
        return f"expected at most {meta['maximum']}"
    if meta.get("above") is not None and value <= meta["above"]:
        return f"expected more than {meta['above']}"
    if meta.get("below") is not None and value >= meta["below"]:
        return f"expected less than {meta['below']}"
    return None


def with_moved_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config of an earlier version with the names of this one."""
    values = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    for (section, name), (new_section, new_name) in _MOVED.items():
        if isinstance(values.get(section), dict) and name in values[section]:
            values.setdefault(new_section, {}).setdefault(new_name, values[section].pop(name))
    return values


def completed(stored: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A config that an earlier version has stored with the names of this one, and with defaults for what it lacks.

    Args:
      config: what it is to be compared with, which has the fields of this version.
    """
    result, defaults = with_moved_fields(stored), ExperimentConfig().to_dict()
    for section, fields in config.items():
        before = result.get(section, {})
        if isinstance(fields, Mapping) and isinstance(before, Mapping):
            known = {name: value for name, value in defaults.get(section, {}).items() if name in fields}
            result[section] = known | dict(before)
    return result


def _from_mapping(cls: type, values: Mapping[str, Any], prefix: str, problems: list[str]) -> Any:
    annotations = field_types(cls)
    kwargs = {}
    for name, value in values.items():
        if name not in annotations:
            problems.append(f"{prefix}{name}: no such field{nearest(name, annotations)}")
        elif dataclasses.is_dataclass(annotations[name]):
            if isinstance(value, Mapping):
                kwargs[name] = _from_mapping(annotations[name], value, f"{prefix}{name}.", problems)
            else:
                problems.append(f"{prefix}{name}={value!r}: expected a section of fields")
        else:
            # An integer is a valid value of a float field, in Python and on the command line alike.
            is_float = base_type(annotations[name]) is float and type(value) is int
            kwargs[name] = float(value) if is_float else value
    return cls(**kwargs)


def _to_config_dict(section: Any) -> ml_collections.ConfigDict:
    from ml_collections import config_dict

    annotations = field_types(type(section))
    result = config_dict.ConfigDict()
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            result[field.name] = _to_config_dict(value)
        elif value is None:
            result[field.name] = config_dict.placeholder(base_type(annotations[field.name]))
        else:
            result[field.name] = value
    return result


def config_error(problems: list[str]) -> ConfigError:
    """One error that lists every problem."""
    if len(problems) == 1:
        return ConfigError(f"config: {problems[0]}")
    return ConfigError(f"config: {len(problems)} problems\n" + "\n".join(f"  - {p}" for p in problems))
