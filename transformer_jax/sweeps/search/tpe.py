"""The tree-structured Parzen estimator (Bergstra et al. 2011), by Optuna: what is tried next follows from the others.

A variant's value is the study's first metric, averaged over the seeds. A variant that diverges with a seed has the
worst value there is, infinity: Optuna's samplers leave out failed trials, which is what it makes of NaN, and would go
back to where trials diverge. One that cannot be run has failed.

What has been tried is in Optuna's database, and what came of it in the trials' folders, whose names follow from the
values. Every variant there says which work directory its folders are in; the next sweep in that goes on with what has
not ended, and so no variant of a sweep that was killed stays `running`. One in a work directory where no sweep says any
more that it lives is tried anew by another sweep with the same database.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.results import RESULT, TRIALS, read_result
from transformer_jax.sweeps.search import storage
from transformer_jax.sweeps.search.base import SearchOptions, Space
from transformer_jax.sweeps.search.validations import Validations
from transformer_jax.sweeps.standing import Standing
from transformer_jax.sweeps.study import Range
from transformer_jax.sweeps.trials import Trial
from transformer_jax.tasks.base import best_metric, validation_metrics

logger = logging.getLogger(__name__)

_WORKDIR, _VARIANT, _SPACE = "workdir", "variant", "space"  # attributes in the database
_FIRST_OF = "failed_trial"  # what Optuna's RetryHeartbeatStaleTrialCallback notes in a second attempt


@dataclasses.dataclass
class _Variant:
    """One that has been asked for and not told: Optuna's trial, and ours, of which `given` are the sweep's by now.

    trial_id: number of Optuna's trial in the database.
    """

    asked: Any
    trial_id: int
    trials: list[Trial]
    given: int = 0


class Tpe:
    """Asks Optuna for as many variants as are needed to keep the workers busy.

    With a pruner a variant runs with the first seed alone, and with the others if that comes to its end.
    """

    notes: Sequence[str] = ()

    def __init__(self, space: Space, options: SearchOptions, workdir: Path, num_workers: int, name: str) -> None:
        """Opens the database.

        Args:
          workdir: of the sweep, which no other sweep uses at the same time.
          name: of the study, in the database too.
        Raises: ConfigError if it cannot be opened, is that of another search, or what is drawn could not be run.
        """
        space.check()
        self._space, self._options, self._num_workers = space, options, num_workers
        self._metric, self._folder = space.study.metrics[0], workdir / TRIALS
        self._worst = math.inf if self._metric.direction == "min" else -math.inf
        self._pruned_by = self._metric.name.rpartition("/")[2]
        pruner = self._pruner()
        url = options.storage or storage.default_url(workdir)
        self._opened = storage.open_study(url, name, self._metric.direction == "max", pruner)
        self._optuna = self._opened.study
        self._variants: list[_Variant] = []
        self._outcomes: dict[str, float | str | None] = {}
        self._log = Validations(self._pruned_by)
        self._ended_early: set[str] = set()
        self._past: list[Trial] = []
        self._next_beat = 0.0
        with storage.storage_errors():
            self._check_space()
        self._owner, self._lock = storage.identity(workdir), storage.locked(workdir)
        with storage.storage_errors():
            self._go_on()

    @property
    def is_over(self) -> bool:
        with storage.storage_errors():
            return not self._variants and not self._may_ask()

    def next(self, standings: Sequence[Standing]) -> list[Trial]:
        with storage.storage_errors():
            self._beat()
            past, self._past = self._past, []
            trials = past + self._advance()
            busy = sum(not standing.has_ended for standing in standings) + len(trials) - len(past)
            while busy < self._num_workers and self._may_ask():
                self._ask()
                new = self._advance()
                trials += new
                busy += len(new)
        return trials

    def finished(self, standing: Standing) -> None:
        outcome: float | str = standing.status
        if standing.status == "diverged":
            outcome = self._worst
        elif standing.status == "finished":
            result = read_result(standing.folder)
            assert result is not None
            value = result.metrics[self._metric.name]
            outcome = value if value is not None and math.isfinite(value) else self._worst
        self._outcomes[standing.trial.name] = outcome

    def pruned(self, running: Sequence[Standing]) -> list[tuple[Standing, str]]:
        if self._options.pruner == "none":
            return []
        firsts = {variant.trials[0].name: variant for variant in self._variants}
        found = []
        for standing in running:
            variant = firsts.get(standing.trial.name)
            if variant is None or standing.trial.name in self._ended_early:
                continue
            values = self._log.read(standing)
            with storage.storage_errors():
                step = _report(variant.asked, self._opened.database.get_trial(variant.trial_id), values)
                # What has taken its last step has nothing left to save.
                if step is None or step >= standing.trial.config.training.num_train_steps:
                    continue
                if variant.asked.should_prune():
                    self._ended_early.add(standing.trial.name)
                    why = f"{self._options.pruner}: valid/{self._pruned_by} {values[step]:.4g} at step {step}"
                    found.append((standing, why))
        return found

    def close(self) -> None:
        self._lock.close()

    def _advance(self) -> list[Trial]:
        """Tells Optuna of the variants that are done; returns the trials of others that are to start."""
        new: list[Trial] = []
        given_more = True
        while given_more:  # what is given may have been run already, for the same variant asked for before
            given_more = False
            for variant in list(self._variants):
                outcomes = [self._outcomes.get(trial.name) for trial in variant.trials[: variant.given]]
                if None in outcomes:
                    continue
                if (verdict := self._verdict(outcomes, len(variant.trials))) is not None:
                    self._optuna.tell(variant.asked.number, *verdict, skip_if_finished=True)
                    self._variants.remove(variant)
                    continue
                until = len(variant.trials) if variant.given or self._options.pruner == "none" else 1
                fresh = [t for t in variant.trials[variant.given : until] if t.name not in self._outcomes]
                self._outcomes |= dict.fromkeys((trial.name for trial in fresh), None)
                new += fresh
                variant.given, given_more = until, True
        return new

    def _verdict(self, outcomes: Sequence[Any], count: int) -> tuple[float | None, Any] | None:
        """Value and state to tell, or None while trials are to come."""
        from optuna.trial import TrialState

        if "failed" in outcomes:
            return None, TrialState.FAIL
        if "pruned" in outcomes:
            return None, TrialState.PRUNED
        if len(outcomes) < count and self._worst not in outcomes:
            return None
        return math.fsum(outcomes) / len(outcomes) if self._worst not in outcomes else self._worst, None

    def _may_ask(self) -> bool:
        from optuna.trial import TrialState

        assert self._options.num_trials is not None
        trials = self._optuna.get_trials(deepcopy=False)
        waiting = any(trial.state == TrialState.WAITING for trial in trials)
        return waiting or sum(_FIRST_OF not in t.system_attrs for t in trials) < self._options.num_trials

    def _ask(self) -> None:
        from optuna.trial import TrialState

        # A variant is its work directory's from the first: what is killed here is found by the next sweep.
        if not any(trial.state == TrialState.WAITING for trial in self._optuna.get_trials(deepcopy=False)):
            self._optuna.enqueue_trial({}, user_attrs={_WORKDIR: self._owner})
        self._take(self._optuna.ask())

    def _take(self, asked: Any) -> None:
        """Has a variant's values, which are drawn if they are not yet; and its trials, unless a run refuses them."""
        import optuna

        if asked.user_attrs.get(_WORKDIR) != self._owner:
            asked.set_user_attr(_WORKDIR, self._owner)
        trial_id = self._opened.trial_id(asked)
        self._opened.database.record_heartbeat(trial_id)
        # By its number, so that the next sweep in the work directory does not draw the same again.
        seed = int.from_bytes(hashlib.sha256(f"{self._options.seed} {asked.number}".encode()).digest()[:4], "big")
        self._optuna.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        values: dict[str, Any] = {}
        for axis in self._space.study.axes:
            if not isinstance(axis, Range):
                values[axis.name] = asked.suggest_categorical(axis.name, list(axis.values))
            elif axis.is_integer:
                values[axis.name] = asked.suggest_int(axis.name, round(axis.low), round(axis.high), log=axis.log)
            else:
                values[axis.name] = asked.suggest_float(axis.name, axis.low, axis.high, log=axis.log)
        try:
            trials = self._space.trials(values)
        except ConfigError as error:
            logger.warning("variant %d is none that can be run, and is left out: %s", asked.number, error)
            self._optuna.tell(asked.number, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
            return
        if asked.user_attrs.get(_VARIANT) != trials[0].variant:
            asked.set_user_attr(_VARIANT, trials[0].variant)
        self._variants.append(_Variant(asked, trial_id, trials))

    def _go_on(self) -> None:
        """Takes back the variants of this work directory that an earlier sweep has asked for.

        What had not ended goes on. What has failed is tried again, it may have been put right.
        """
        import optuna

        trials = self._optuna.get_trials(deepcopy=False)
        followed = {number for trial in trials for number in trial.system_attrs.get("retry_history", ())}
        for trial in trials:
            if trial.user_attrs.get(_WORKDIR) != self._owner or trial.number in followed:
                continue
            if trial.state == optuna.trial.TrialState.RUNNING:
                self._take(optuna.trial.Trial(self._optuna, self._opened.trial_id(trial)))
            elif trial.state == optuna.trial.TrialState.FAIL:
                optuna.storages.RetryHeartbeatStaleTrialCallback()(self._optuna, trial)
            elif trial.state.is_finished():
                with_result = [t for t in self._space.trials(trial.params) if (self._folder / t.name / RESULT).exists()]
                self._past += [t for t in with_result if t.name not in self._outcomes]
                self._outcomes |= dict.fromkeys((t.name for t in with_result), None)

    def _beat(self) -> None:
        """Says now and then that this sweep lives, and has what others have left tried anew."""
        import optuna

        if time.monotonic() < self._next_beat:
            return
        self._next_beat = time.monotonic() + storage.HEARTBEAT_SECONDS
        for variant in self._variants:
            self._opened.database.record_heartbeat(variant.trial_id)
        optuna.storages.fail_stale_trials(self._optuna)

    def _check_space(self) -> None:
        """Raises ConfigError if the study in the database is one of other variants or another value."""
        study = self._space.study
        first = self._space.first()
        first = dataclasses.replace(
            first, data=dataclasses.replace(first.data, cache_dir="")
        )  # each machine has its own
        parts = (first, study.axes, study.seeds, self._metric)
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()
        known = self._optuna.user_attrs.get(_SPACE)
        if known is None:
            self._optuna.set_user_attr(_SPACE, digest)
        elif known != digest:
            raise ConfigError(
                f"--storage: the study '{self._optuna.study_name}' there has another baseline, axes, seeds or metric; "
                "choose another --storage for the changed study, and another --workdir"
            )

    def _pruner(self) -> Any:
        """Raises ConfigError if what the study asks for is not known before the end of a training."""
        if self._options.pruner == "none":
            return None
        config = self._space.first()
        logged = _logged(config, best_metric(config).needs_generation)
        if self._pruned_by not in logged:
            known = self._pruned_by in _logged(config, True)
            choose = f", or set training.best_metric={self._pruned_by}" if known else ""
            raise ConfigError(
                f"--pruner={self._options.pruner}: '{self._pruned_by}' is not logged during training, "
                f"{', '.join(logged)} are: have the study's first metric be one of them{choose}"
            )
        with contextlib.suppress(ImportError):  # which opening the database tells
            import optuna

            if self._options.pruner == "median":
                return optuna.pruners.MedianPruner()
            return optuna.pruners.SuccessiveHalvingPruner(min_resource=config.training.eval_every_steps)


def _logged(config: ExperimentConfig, generate: bool) -> list[str]:
    """Return the names of what a validation logs that a search may seek the best of."""
    return [spec.name for spec in validation_metrics(config, generate) if spec.direction]


def _report(asked: Any, stored: Any, values: dict[int, float]) -> int | None:
    """Reports values by step that the stored trial has not yet; returns the last step if there is a new one."""
    new = sorted(step for step in values if step not in stored.intermediate_values)
    for step in new:
        asked.report(values[step], step)
    return new[-1] if new else None
