"""The sections `optimizer`, `training`, `evaluation` and `parallel`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from transformer_jax.config.fields import DerivedFloat, DerivedInt, choice, number, rate

MAX_STEPS = 2**31 - 1  # steps are counted in int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam with a warm-up schedule (Vaswani et al. 2017, section 5.3); training/optimizers.py."""

    schedule: str = choice(
        "inverse_sqrt",
        ("inverse_sqrt", "cosine", "linear", "constant", "none"),
        "learning rate after the warm-up; `none` is a constant without warm-up",
    )
    learning_rate: DerivedFloat = number(
        None, "peak learning rate; default (emb_dim * warmup_steps)^-0.5, the paper's", 0.0, hyper=True
    )
    warmup_steps: int = number(4000, "steps of linear warm-up from 0 to the peak", 0, MAX_STEPS, hyper=True)
    decay_steps: DerivedInt = number(
        None, "step at which `cosine` and `linear` reach their end; default num_train_steps", 1, MAX_STEPS, hyper=True
    )
    end_fraction: float = number(0.0, "`cosine` and `linear` end at this fraction of the peak", 0.0, 1.0, hyper=True)
    beta1: float = number(0.9, "Adam's decay of the first moment", 0.0, below=1.0, hyper=True)
    beta2: float = number(0.98, "Adam's decay of the second moment", 0.0, below=1.0, hyper=True)
    epsilon: float = number(1e-9, "Adam's epsilon, outside the square root", 1e-30, hyper=True)
    weight_decay: float = number(
        0.0, "decoupled weight decay, times the learning rate; kernels only", 0.0, hyper=True, switch=True
    )
    clip_norm: float = number(
        1.0, "gradients are scaled down to this global norm; 0 turns it off", 0.0, hyper=True, switch=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The loop: how long, how often, what is kept."""

    num_train_steps: int = number(100_000, "optimizer updates", 1, MAX_STEPS)
    accumulation_steps: int = number(
        1, "gradient accumulation: parts a batch is computed in, in turn; the update stays the same", 1, rounding=True
    )
    loss_chunks: int = number(
        1, "parts of the target length whose logits are computed in turn: never all in memory", 1, rounding=True
    )
    label_smoothing: float = rate(0.1, "mass spread over the vocabulary in the loss (epsilon_ls)")
    log_every_steps: int = number(100, "updates between two lines of metrics", 1)
    eval_every_steps: int = number(1000, "updates between two validations, on the split `valid`", 1)
    patience: int = number(
        0, "training ends after so many validations in a row that best_metric has not improved in; 0: it does not", 0
    )
    on_nonfinite: str = choice(
        "stop", ("stop", "skip"), "what is done about an update whose loss or gradient is not finite"
    )
    max_skipped_updates: int = number(
        10, "with on_nonfinite='skip': as many in the whole run, and with one more it ends", 0
    )
    checkpoint_every_steps: int = number(1000, "updates between two checkpoints", 1)
    keep_last: int = number(3, "newest checkpoints kept", 1)
    keep_best: int = number(1, "best checkpoints kept besides, by best_metric, of those that fall on a validation", 0)
    best_metric: str = choice(
        "loss",
        ("loss", "accuracy", "exact_match", "sacrebleu", "chrf"),
        "validation metric that ranks checkpoints; the last three translate the split at every evaluation",
    )

    def problems(self) -> Iterator[str]:
        if self.on_nonfinite != "skip" and self.max_skipped_updates != TrainingConfig.max_skipped_updates:
            yield f"max_skipped_updates={self.max_skipped_updates} is not read with on_nonfinite='{self.on_nonfinite}'"

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger `best_metric` is a better one."""
        return self.best_metric != "loss"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What a checkpoint is scored with."""

    tokens_per_batch: int = number(8192, "the same as data.tokens_per_batch, in evaluation and translation", 16)
    average_checkpoints: int = number(1, "newest checkpoints whose parameters are averaged", 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How one step runs on many devices; parallel/launchers.py."""

    launcher: str = choice(
        "jit", ("jit", "shard_map", "pmap"), "what compiles and distributes the training step", rounding=True
    )
    num_devices: int | None = number(None, "devices that take part; default all", 1, rounding=True)
    fsdp: int = number(
        1,
        "`jit`: devices that parameters and moments are divided among by width (FSDP); batches too, by rows",
        1,
        rounding=True,
    )
    tensor: int = number(
        1, "`jit`: devices that heads, feed-forward units and vocabulary are divided among", 1, rounding=True
    )

    def problems(self) -> Iterator[str]:
        for name in ("fsdp", "tensor"):
            if self.launcher != "jit" and getattr(self, name) > 1:
                yield f"{name}={getattr(self, name)} is not read with launcher='{self.launcher}'"
        if self.num_devices is not None and self.num_devices % (self.fsdp * self.tensor):
            yield f"num_devices={self.num_devices} is not a multiple of fsdp={self.fsdp} x tensor={self.tensor}"
