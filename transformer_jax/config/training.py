"""The sections `optimizer`, `training`, `evaluation` and `parallel`."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from transformer_jax.config.fields import DerivedFloat, DerivedInt, choice, field, number, rate
from transformer_jax.config.model import PREDICTING_TOKENS, TRANSFORMERS
from transformer_jax.config.patterns import check_pattern

MAX_STEPS = 2**31 - 1  # steps are counted in int32

WEIGHTS = ("scored", "raw", "both")
"""The weights that `evaluate` can score: those that training scores, those that the optimizer updates, or both."""
ENDING = ("cosine", "linear", "wsd")
"""Schedules that end at decay_steps."""

_LANGUAGE_MODEL = {"task.name": ("language_model",)}
_OVER_VOCABULARY = {"task.name": PREDICTING_TOKENS}
_WITH_EXPERTS = {"model.feed_forward": ("experts",)}
_ADAM = {"optimizer.name": ("adam", "muon")}
_MUON = {"optimizer.name": ("muon",)}
_JIT = {"parallel.launcher": ("jit",)}
_RECORD = "jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Settings of the optimizer and of its learning rate (Vaswani et al. 2017, section 5.3); training/optimizers.py."""

    name: str = choice(
        "adam",
        "transformer_jax.training.optimizers:OPTIMIZERS",
        "rule of the update; `adam` is AdamW if weight_decay is set",
        outside=True,
    )
    schedule: str = choice(
        "inverse_sqrt",
        "transformer_jax.training.schedules:SCHEDULES",
        "learning rate after the warm-up; `none`: constant, without warm-up",
        outside=True,
    )
    learning_rate: DerivedFloat = number(
        None,
        "peak learning rate; default (emb_dim * warmup_steps)^-0.5, the paper's",
        0.0,
        hyper=True,
        derived_from=("model.emb_dim", "optimizer.warmup_steps"),
    )
    warmup_steps: int = number(4000, "steps of linear warm-up from 0 to the peak", 0, MAX_STEPS, hyper=True)
    decay_steps: DerivedInt = number(
        None,
        "step at which `cosine`, `linear` and `wsd` end; default num_train_steps",
        1,
        MAX_STEPS,
        hyper=True,
        derived_from=("training.num_train_steps",),
        used_with={"optimizer.schedule": ENDING},
    )
    end_fraction: float = number(
        0.0, "`cosine`, `linear` and `wsd` end at this fraction of the peak", 0.0, 1.0, hyper=True
    )
    decay_fraction: float = number(
        0.2,
        "`wsd`: the decay is the last fraction of decay_steps, in whole updates; before it the rate is the peak",
        1e-6,
        1.0,
        hyper=True,
        read_by={"optimizer.schedule": ("wsd",)},
    )
    decay_power: float = number(
        1.0,
        "`wsd`: after the share x of the decay, 1 - x^decay_power of it is left; 1: linear; 0.5: 1 - sqrt(x)",
        1e-3,
        hyper=True,
        read_by={"optimizer.schedule": ("wsd",)},
    )
    beta1: float = number(
        0.9,
        "`adam`, `lion`, Adam's part of `muon`: decay of the first moment; `sgd`: momentum",
        0.0,
        below=1.0,
        hyper=True,
        read_by={"optimizer.name": ("adam", "lion", "sgd", "muon")},
    )
    beta2: float = number(
        0.98,
        "`adam`, `muon`: decay of Adam's second moment; `lion`: of the momentum",
        0.0,
        below=1.0,
        hyper=True,
        read_by={"optimizer.name": ("adam", "lion", "muon")},
    )
    epsilon: float = number(1e-9, "`adam`, `muon`: outside Adam's square root", 1e-30, hyper=True, read_by=_ADAM)
    muon_momentum: float = number(
        0.95, "`muon`: momentum of hidden matrices, Nesterov's", 0.0, below=1.0, hyper=True, read_by=_MUON
    )
    muon_scale: str = choice(
        "rms",
        "transformer_jax.training.muon:SCALES",
        "`muon`: updates of matrices are as large as Adam's, 0.2 sqrt(max(inputs, outputs)); or `spectral`: "
        "sqrt(max(1, outputs / inputs))",
        read_by=_MUON,
    )
    adam_rate_factor: float = number(
        1.0,
        "`muon`: the learning rate of all parameters but hidden matrices is multiplied by this",
        1e-6,
        hyper=True,
        switch=True,
        off=1.0,
        read_by=_MUON,
    )
    nesterov: bool = field(False, "`sgd`: Nesterov's momentum", read_by={"optimizer.name": ("sgd",)})
    decay_exponent: float = number(
        0.8,
        "`adafactor`: the decay of the second moment at step t is 1 - t^-decay_exponent",
        0.0,
        1.0,
        read_by={"optimizer.name": ("adafactor",)},
    )
    scale_by_parameter: bool = field(
        True,
        "`adafactor`: an update is relative to the size of its parameter",
        read_by={"optimizer.name": ("adafactor",)},
    )
    weight_decay: float = number(
        0.0,
        "decoupled weight decay, multiplied by the learning rate; of the parameters of decay_mask",
        0.0,
        hyper=True,
        switch=True,
    )
    weight_decay_independent: bool = field(
        False,
        "weight decay is multiplied by the learning rate relative to its peak, and so does not depend on the peak",
    )
    weight_decay_cautious: bool = field(
        False, "weight decay only where the update also moves the parameter towards zero, or does not move it"
    )
    decay_mask: str = choice(
        "matrices",
        "transformer_jax.training.optimizers:DECAY_MASKS",
        "parameters with weight decay: kernels; all but norms and biases; or all",
    )
    momentum_dtype: str = choice(
        "float32",
        ("float32", "bfloat16"),
        "type in which the first moment, or momentum, is stored",
        read_by={"optimizer.name": ("adam", "lion", "sgd", "muon")},
    )
    second_moment_dtype: str = choice(
        "float32",
        ("float32", "bfloat16"),
        "type in which the second moment is stored; bfloat16 needs a beta2 of at most about 0.99",
        read_by=_ADAM,
    )
    clip_norm: float = number(
        1.0, "gradients are scaled down to this global norm; 0 turns it off", 0.0, hyper=True, switch=True
    )
    layer_decay: float = number(
        1.0,
        "the learning rate of a layer is multiplied by this for every layer above it and the head, that of embeddings "
        "once more; 1 turns it off",
        1e-6,
        1.0,
        hyper=True,
        switch=True,
        off=1.0,
        read_by={"model.architecture": TRANSFORMERS},
    )
    freeze: str = field(
        "",
        "parameters that keep their values: regular expressions for the beginnings of their paths, separated by "
        "commas, as in 'embedding,encoder/layers:6'; ':6' takes the first 6 layers of a stack",
    )
    lr_multipliers: str = field(
        "",
        "multiples of the learning rate, as in 'embedding=0.3; decoder/layers/self_attention=2': regular expressions "
        "as in freeze, separated by semicolons; of all other parameters 1",
    )

    @property
    def decay_start(self) -> int:
        """The last update of a resolved config before the decay of `wsd`; at least 1 update decays."""
        return self.decay_steps - max(round(self.decay_fraction * self.decay_steps), 1)

    def problems(self) -> Iterator[str]:
        for name, parse in (("freeze", parse_freeze), ("lr_multipliers", parse_multipliers)):
            try:
                parse(getattr(self, name))
            except ValueError as error:
                yield f"{name}={getattr(self, name)!r}: {error}"
        for name in ("weight_decay_independent", "weight_decay_cautious"):
            if getattr(self, name) and not self.weight_decay:
                yield f"{name}=True has no effect with weight_decay=0"


def _begins(pattern: str, path: str) -> bool:
    """Return whether a regular expression matches the beginning of a path, up to a slash or its end."""
    return re.match(rf"(?:{pattern})(?:/|$)", path) is not None


class FreezeRule(NamedTuple):
    """A rule of `optimizer.freeze`: a regular expression; and the number of first layers, or None for all."""

    pattern: str
    layers: int | None

    def matches(self, path: str) -> bool:
        """Return whether the beginning of a path, up to a slash or its end, matches."""
        return _begins(self.pattern, path)


def parse_freeze(text: str) -> tuple[FreezeRule, ...]:
    """Return the rules of `optimizer.freeze`, as in "a,b:2" -> (("a", None), ("b", 2)).

    Raises: ValueError, whose text says why, if a rule is empty, has no layers or has a pattern that `check_pattern`
    refuses.
    """
    rules = []
    for part in (part.strip() for part in text.split(",")) if text.strip() else ():
        pattern, colon, layers = part.rpartition(":")
        rule = FreezeRule(pattern, int(layers)) if colon and layers.isdecimal() else FreezeRule(part, None)
        if not rule.pattern:
            raise ValueError("expected regular expressions separated by commas, found an empty one")
        if rule.layers == 0:
            raise ValueError(f"'{part}' freezes no layer; expected a number of at least 1 after ':'")
        check_pattern(rule.pattern)
        rules.append(rule)
    return tuple(rules)


class MultiplierRule(NamedTuple):
    """A rule of `optimizer.lr_multipliers`: a regular expression, and the multiple of the learning rate."""

    pattern: str
    factor: float

    def matches(self, path: str) -> bool:
        """Return whether the beginning of a path, up to a slash or its end, matches."""
        return _begins(self.pattern, path)


def parse_multipliers(text: str) -> tuple[MultiplierRule, ...]:
    """Return the rules of `optimizer.lr_multipliers`, as in "a=0.3; b/c=2" -> (("a", 0.3), ("b/c", 2.0)).

    Raises: ValueError, whose text says why, if a rule has no pattern or no positive finite number, or has a pattern
      that `check_pattern` refuses, or that is there twice.
    """
    rules: list[MultiplierRule] = []
    for part in (part.strip() for part in text.split(";")) if text.strip() else ():
        pattern, equals, number = (piece.strip() for piece in part.rpartition("="))
        if not pattern or not equals:
            raise ValueError(f"expected 'PATTERN=NUMBER; PATTERN=NUMBER', found '{part}'")
        try:
            factor = float(number)
        except ValueError:
            raise ValueError(f"'{part}': '{number}' is not a number") from None
        if not 0 < factor < math.inf:
            raise ValueError(f"'{part}': expected a positive number; optimizer.freeze keeps parameters as they are")
        check_pattern(pattern)
        if any(rule.pattern == pattern for rule in rules):
            raise ValueError(f"'{pattern}' is there twice")
        rules.append(MultiplierRule(pattern, factor))
    return tuple(rules)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of the training loop: length, intervals and stored checkpoints."""

    num_train_steps: int = number(100_000, "optimizer updates", 1, MAX_STEPS)
    init_from: str = field(
        "",
        "path of a checkpoint (as for --checkpoint) whose parameters a new run starts from, instead of random ones; "
        "only parameters of a head may be missing in it",
    )
    new_head: bool = field(
        False, "with init_from, the head starts anew even if the checkpoint has one of the same task; for other labels"
    )
    new_parameters: bool = field(
        False,
        "with init_from, all parameters start anew, and only the tokenizer is that of the checkpoint: training from "
        "scratch, for a comparison",
    )
    accumulation_steps: int = number(
        1, "gradient accumulation: number of parts of a batch, computed in turn; same update", 1, rounding=True
    )
    loss_chunks: int = number(
        1,
        "number of parts of the target length whose logits are computed in turn, to save memory",
        1,
        rounding=True,
        read_by=_OVER_VOCABULARY,
    )
    label_smoothing: float = rate(0.1, "mass spread over the vocabulary in the loss (epsilon_ls)")
    z_loss: float = number(
        0.0,
        "weight of the mean of logsumexp(logits)^2 over the targets, which keeps the logits small; 0.0001 in PaLM",
        0.0,
        hyper=True,
        switch=True,
    )
    balance_loss: float = number(
        0.0,
        "weight of the loss that keeps the load of experts equal, for every layer; 0.01 in Switch Transformers",
        0.0,
        hyper=True,
        switch=True,
        read_by=_WITH_EXPERTS,
    )
    router_z_loss: float = number(
        0.0,
        "weight of the loss that keeps the logits of routers small, for every layer; 0.001 in ST-MoE",
        0.0,
        hyper=True,
        switch=True,
        read_by=_WITH_EXPERTS,
    )
    ema_decay: float = number(
        0.0,
        "weights are scored as an exponential moving average that keeps this share of itself at an update, at most "
        "(1 + t) / (10 + t) at update t; such as 0.999. 0 turns it off",
        0.0,
        below=1.0,
        hyper=True,
        switch=True,
    )
    log_every_steps: int = number(100, "updates between two lines of metrics", 1, bookkeeping=True)
    monitor_every_steps: int | None = number(
        None,
        "updates between two that log values of every layer, such as the size of its output; training/monitor.py. None "
        "or 0: never",
        0,
        MAX_STEPS,
        rounding=True,
    )
    eval_every_steps: int = number(
        1000, "updates between two validations, on the split `valid`", 1, bookkeeping={"training.patience": 0}
    )
    patience: int = number(
        0, "training ends after this many validations in a row without a better best_metric; 0: never", 0
    )
    on_nonfinite: str = choice(
        "stop", ("stop", "skip"), "if a loss or gradient is not finite: end training, or skip the update"
    )
    max_skipped_updates: int = number(
        10,
        "`skip`: number of updates that a whole run may skip; one more ends training",
        0,
        read_by={"training.on_nonfinite": ("skip",)},
    )
    checkpoint_every_steps: int = number(1000, "updates between two checkpoints", 1, bookkeeping=True)
    keep_last: int = number(3, "newest checkpoints kept", 1, bookkeeping=True)
    keep_best: int = number(
        1,
        "best checkpoints by best_metric, kept in addition; only steps with a validation are compared",
        0,
        bookkeeping=True,
    )
    best_metric: str = field(
        "loss", "validation metric that ranks checkpoints; tasks/task.py. Some metrics decode at every validation"
    )
    trackers: str = choice(
        "jsonl,tensorboard",
        "transformer_jax.trackers.tracker:TRACKERS",
        "where metrics are logged, separated by commas: jsonl, and any others; trackers/tracker.py",
        outside=True,
        several=True,
        bookkeeping=True,
    )

    def problems(self) -> Iterator[str]:
        try:
            parse_trackers(self.trackers)
        except ValueError as error:
            yield f"trackers={self.trackers!r}: {error}"
        if (self.monitor_every_steps or 0) > self.num_train_steps:
            yield (
                f"monitor_every_steps={self.monitor_every_steps} is more than num_train_steps={self.num_train_steps}: "
                "no update would be monitored"
            )
        for name in ("new_head", "new_parameters"):
            if getattr(self, name) and not self.init_from:
                yield f"{name}=True has no effect without init_from, because all parameters are new anyway"
        if self.new_head and self.new_parameters:
            yield "new_head=True has no effect with new_parameters=True, because all parameters are new anyway"


def parse_trackers(text: str) -> tuple[str, ...]:
    """Return the names of `training.trackers`.

    Raises: ValueError, whose text says why, for a repeated name, or if the record of the run is missing.
    """
    names = tuple(name.strip() for name in text.split(","))
    if len(set(names)) < len(names):
        raise ValueError("expected every tracker once")
    if _RECORD not in names:
        raise ValueError(f"expected {_RECORD} too: resuming, sweeps and reports read metrics.jsonl")
    return names


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Settings of evaluation."""

    tokens_per_batch: int = number(8192, "like data.tokens_per_batch, for evaluation and translation", 16)
    max_length: int | None = number(
        None,
        "tokens of a window of scoring; default data.max_length. Longer documents have several windows",
        2,
        read_by=_LANGUAGE_MODEL,
    )
    context: int = number(
        0,
        "a window begins with this many tokens that the one before has scored; 0: windows side by side",
        0,
        read_by=_LANGUAGE_MODEL,
    )
    average_checkpoints: int = number(1, "newest checkpoints whose parameters are averaged", 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Settings for several devices; parallel/launchers.py."""

    launcher: str = choice(
        "jit",
        "transformer_jax.parallel.launchers:LAUNCHERS",
        "how the training step is compiled and divided among devices",
        rounding=True,
    )
    num_devices: int | None = number(None, "number of devices used; default all", 1, rounding=True)
    fsdp: int = number(
        1,
        "`jit`: number of devices that divide the width of parameters and moments (FSDP), and the rows of batches",
        1,
        rounding=True,
        read_by=_JIT,
    )
    tensor: int = number(
        1,
        "`jit`: number of devices that divide heads, feed-forward units and vocabulary",
        1,
        rounding=True,
        read_by=_JIT,
    )

    def problems(self) -> Iterator[str]:
        if self.num_devices is not None and self.num_devices % (self.fsdp * self.tensor):
            yield f"num_devices={self.num_devices} is not a multiple of fsdp={self.fsdp} x tensor={self.tensor}"
