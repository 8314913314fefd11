"""Search with the tree-structured Parzen estimator (Bergstra et al. 2011) of Optuna, which learns from earlier trials.

A variant's value is the study's first metric, averaged over the seeds. A variant that diverges with any seed gets the
worst possible value, infinity. Not NaN: Optuna would treat the trial as failed and ignore it, so the search would
return to where trials diverge. A variant that cannot be run has failed.

Optuna's database in the work directory holds the variants; the trials' folders, named by the values, hold their
results. The next sweep in that directory resumes the variants that have not ended, so that no variant of a killed sweep
stays `running`, and tries failed ones again, since their cause may be fixed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.results import RESULT, TRIALS, read_result
from transformer_jax.sweeps.search import storage
from transformer_jax.sweeps.search.search import SearchOptions, Space
from transformer_jax.sweeps.search.validations import Validations
from transformer_jax.sweeps.study import Range
from transformer_jax.sweeps.trial_state import Standing
from transformer_jax.sweeps.trials import Trial
from transformer_jax.tasks.task import best_metric, validation_metrics

logger = logging.getLogger(__name__)

_VARIANT, _RETRY_OF, _SPACE = "variant", "retry_of", "space"  # attributes in the database


@dataclasses.dataclass
class _Variant:
    """A variant without a final value as yet.

    Attributes:
      asked: Optuna's trial.
      trial_id: its number in the database.
      trials: our trials, one per seed.
      given: how many of these the sweep has got.
    """

    asked: Any
    trial_id: int
    trials: list[Trial]
    given: int = 0


class Tpe:
    """A search that asks Optuna for as many variants as the workers can run.

    With a pruner, a variant runs with the first seed, and with the others only if that trial finishes.
    """

    notes: Sequence[str] = ()

    def __init__(self, space: Space, options: SearchOptions, workdir: Path, num_workers: int, name: str) -> None:
        """Open the database, and resume the variants of an earlier sweep in the work directory.

        Args:
          workdir: work directory of the sweep.
          name: name of the study, also in the database.
        Raises: ConfigError if the database has another study of this name, if the space has invalid configs, and if
          another sweep is searching in the work directory; DataError if the database cannot be opened.
        """
        space.check_draws()
        self._space, self._options, self._num_workers = space, options, num_workers
        self._metric, self._folder = space.study.metrics[0], workdir / TRIALS
        self._worst = math.inf if self._metric.direction == "min" else -math.inf
        self._pruned_by = self._metric.name.rpartition("/")[2]
        pruner = self._pruner()
        self._variants: list[_Variant] = []
        self._outcomes: dict[str, float | str | None] = {}
        self._log = Validations(self._pruned_by)
        self._ended_early: set[str] = set()
        self._past: list[Trial] = []
        self._file = workdir / storage.DATABASE
        with contextlib.ExitStack() as opened:
            self._lock = opened.enter_context(storage.locked(workdir))
            self._opened = storage.open_study(workdir, name, self._metric.direction == "max", pruner)
            self._optuna = self._opened.study
            with self._storage_errors():
                self._check_space()
                self._resume_variants()
            opened.pop_all()

    @property
    def is_over(self) -> bool:
        with self._storage_errors():
            return not self._variants and not self._may_ask()

    def next(self, standings: Sequence[Standing]) -> list[Trial]:
        with self._storage_errors():
            past, self._past = self._past, []
            trials = past + self._advance()
            busy = sum(not standing.has_ended for standing in standings) + len(trials) - len(past)
            while busy < self._num_workers and self._may_ask():
                self._take(self._optuna.ask())
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
            with self._storage_errors():
                step = _report(variant.asked, self._opened.database.get_trial(variant.trial_id), values)
                # After its last step a trial has no training left to prune.
                if step is None or step >= standing.trial.config.training.num_train_steps:
                    continue
                if variant.asked.should_prune():
                    self._ended_early.add(standing.trial.name)
                    why = f"{self._options.pruner}: valid/{self._pruned_by} {values[step]:.4g} at step {step}"
                    found.append((standing, why))
        return found

    def close(self) -> None:
        self._lock.close()

    def _storage_errors(self) -> contextlib.AbstractContextManager[None]:
        return storage.storage_errors(self._file)

    def _advance(self) -> list[Trial]:
        """Tell Optuna the values of variants that are done; return the trials to start now."""
        new: list[Trial] = []
        given_more = True
        while given_more:  # trials may have results already, if the same variant was drawn before
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
        """Return the value and state to tell Optuna, None while trials are missing."""
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
        return waiting or sum(_RETRY_OF not in t.user_attrs for t in trials) < self._options.num_trials

    def _take(self, asked: Any) -> None:
        """Draw the values of a variant if there are none, and add its trials.

        A variant whose config is invalid is reported to Optuna as failed.
        """
        import optuna

        # The seed depends on the trial's number, so that the next sweep does not draw the same values again.
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
            logger.warning("variant %d cannot be run and is skipped: %s", asked.number, error)
            self._optuna.tell(asked.number, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
            return
        if asked.user_attrs.get(_VARIANT) != trials[0].variant:
            asked.set_user_attr(_VARIANT, trials[0].variant)
        self._variants.append(_Variant(asked, self._opened.trial_id(asked), trials))

    def _resume_variants(self) -> None:
        """Resume the variants that an earlier sweep has asked for, and queue failed ones again with their values."""
        import optuna

        trials = self._optuna.get_trials(deepcopy=False)
        retried = {trial.user_attrs.get(_RETRY_OF) for trial in trials}
        for trial in trials:
            if trial.state == optuna.trial.TrialState.RUNNING:
                self._take(optuna.trial.Trial(self._optuna, self._opened.trial_id(trial)))
            elif trial.state == optuna.trial.TrialState.FAIL:
                if trial.number not in retried:
                    self._optuna.enqueue_trial(trial.params, user_attrs={_RETRY_OF: trial.number})
            elif trial.state.is_finished():
                with_result = [t for t in self._space.trials(trial.params) if (self._folder / t.name / RESULT).exists()]
                self._past += [t for t in with_result if t.name not in self._outcomes]
                self._outcomes |= dict.fromkeys((t.name for t in with_result), None)

    def _check_space(self) -> None:
        """Raise ConfigError if the study in the database has another baseline, axes, seeds or metric."""
        study = self._space.study
        first = self._space.first()
        # The work directory may have moved, and its token cache with it.
        first = dataclasses.replace(first, data=dataclasses.replace(first.data, cache_dir=""))
        parts = (first, study.axes, study.seeds, self._metric)
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()
        known = self._optuna.user_attrs.get(_SPACE)
        if known is None:
            self._optuna.set_user_attr(_SPACE, digest)
        elif known != digest:
            raise ConfigError(
                f"{self._file}: the study '{self._optuna.study_name}' there has another baseline, axes, seeds or "
                "metric; choose another --workdir for the changed study"
            )

    def _pruner(self) -> Any:
        """Return Optuna's pruner; raise ConfigError if the study's first metric is not logged during training."""
        if self._options.pruner == "none":
            return None
        config = self._space.first()
        logged = _logged(config, best_metric(config).needs_generation)
        if self._pruned_by not in logged:
            known = self._pruned_by in _logged(config, True)
            choose = f", or set training.best_metric={self._pruned_by}" if known else ""
            raise ConfigError(
                f"--pruner={self._options.pruner}: '{self._pruned_by}' is not logged during training; make one of "
                f"{', '.join(logged)} the study's first metric{choose}"
            )
        with contextlib.suppress(ImportError):  # reported when the database is opened
            import optuna

            if self._options.pruner == "median":
                return optuna.pruners.MedianPruner()
            return optuna.pruners.SuccessiveHalvingPruner(min_resource=config.training.eval_every_steps)


def _logged(config: ExperimentConfig, generate: bool) -> list[str]:
    """Return the names of the metrics with a direction that a validation logs."""
    return [spec.name for spec in validation_metrics(config, generate) if spec.direction]


def _report(asked: Any, stored: Any, values: dict[int, float]) -> int | None:
    """Report the values by step that the stored trial lacks; return the last new step, None if there is none."""
    new = sorted(step for step in values if step not in stored.intermediate_values)
    for step in new:
        asked.report(values[step], step)
    return new[-1] if new else None
