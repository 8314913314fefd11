"""Run or resume a study: finished trials are skipped, trials whose process died are started again."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from transformer_jax.host import exit_codes
from transformer_jax.readers import read_text
from transformer_jax.sweeps.executors.executor import Executor, StartedWorker
from transformer_jax.sweeps.results import (
    OUTPUT,
    TRIALS,
    Result,
    failure,
    forget_result,
    is_running,
    mark_pruned,
    result_of,
    write_spec,
)
from transformer_jax.sweeps.search.search import Search
from transformer_jax.sweeps.study import Metric
from transformer_jax.sweeps.trial_state import Standing

logger = logging.getLogger(__name__)

MAX_DEATHS = 5
"""A trial has failed once its process has died this often in a row without a new checkpoint."""
_POLL_SECONDS = 0.2
_NO_DEATH = (*exit_codes.OF_REASON.values(), exit_codes.IN_USE)


class Sweep:
    """The trials of a study in a work directory, and the jobs that run them.

    Attributes:
      standings: one for each trial that the search has asked for so far.
      stopped_by: number of the signal that has stopped the sweep; 0 if none has.
    """

    def __init__(
        self,
        search: Search,
        metrics: Sequence[Metric],
        workdir: Path,
        executor: Executor,
        study: Path | None = None,
        examples: bool = False,
    ) -> None:
        """Write trial.json into the folder of every trial.

        Trials that have a result are not run again, unless they failed or the study asks for further metrics.

        Args:
          study: the folder of the study, if it has a `measure` function.
          examples: whether the noise of the test set is measured, for the contrasts of the study.
        Raises: DataError for a result that cannot be read.
        """
        self.standings: list[Standing] = []
        self._search, self._executor = search, executor
        self._metrics, self._study, self._examples, self._folder = metrics, study, examples, workdir / TRIALS
        self._jobs: dict[int, tuple[StartedWorker, list[Standing]]] = {}
        self._told: set[Path] = set()
        self._stopping = False
        self.stopped_by = 0
        self._ask_search()

    def run(self, show: Callable[[Sequence[Standing]], None]) -> bool:
        """Run until every trial has ended or a signal arrives; return False if a signal stopped the sweep.

        Args:
          show: is called with the standings at every poll, a few times per second.
        """
        handlers = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while True:
                self._collect()
                self._tell_search()
                if not self._stopping:
                    self._ask_search()
                    self._stop_pruned()
                    self._start_jobs()
                show(self.standings)
                over = all(standing.has_ended for standing in self.standings) and self._search.is_over
                if not self._jobs and (self._stopping or over):
                    return not self._stopping
                time.sleep(_POLL_SECONDS)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            self._stop_jobs()
            self._executor.close()
            self._search.close()

    def _tell_search(self) -> None:
        for standing in self.standings:
            if standing.has_ended and standing.folder not in self._told:
                self._told.add(standing.folder)
                self._search.finished(standing)

    def _ask_search(self) -> None:
        for trial in self._search.next(self.standings):
            standing = Standing(trial, self._folder / trial.name)
            write_spec(standing.folder, trial, self._metrics, self._study, self._examples)
            if self._is_to_be_run_again(result_of(trial, standing.folder)):
                forget_result(standing.folder)
            self._note_result(standing)
            self.standings.append(standing)

    def _is_to_be_run_again(self, result: Result | None) -> bool:
        """Return whether a trial has failed, since its cause may be fixed now, or lacks a metric of the study."""
        if result is None or result.status != "finished":
            return result is not None and result.status == "failed"
        return not {metric.name for metric in self._metrics} <= set(result.metrics)

    def _stop_pruned(self) -> None:
        """Stop the trials that the search prunes; their workers save and write the result `pruned`."""
        for standing, why in self._search.pruned([s for s in self.standings if s.status == "running"]):
            mark_pruned(standing.folder, why)
            for job, standings in self._jobs.values():
                if standing in standings:
                    job.stop()

    def _start_jobs(self) -> None:
        free = [slot for slot in range(self._executor.num_workers) if slot not in self._jobs]
        if not free:
            return
        # A trial may still be running in another sweep, or in a worker that outlived a killed sweep: wait for it.
        startable = [
            s for s in self.standings if self._is_trained(s) and s.status == "waiting" and not is_running(s.folder)
        ]
        for standing in startable:
            self._note_result(standing)
        by_folder = {s.folder: s for s in startable if s.status == "waiting"}
        jobs = self._executor.jobs([(s.trial, s.folder) for s in by_folder.values()])
        for slot, folders in zip(free, jobs, strict=False):
            if self._stopping:
                break
            standings = [by_folder[folder] for folder in folders]
            self._jobs[slot] = self._executor.start(folders, slot), standings
            for standing in standings:
                standing.status = "running"
        if self._stopping:  # the signal arrived while a job was being started, so `_stop` has missed that job
            self._stop_jobs()

    def _is_trained(self, standing: Standing) -> bool:
        """Return whether a trial trains itself, or the trial that trains it (`trained_by`) has been trained."""
        if standing.trial.trained_by is None:
            return True
        trainer = next(other for other in self.standings if other.trial.name == standing.trial.trained_by)
        if trainer.status == "failed" and standing.status == "waiting":
            self._fail(standing, f"it uses the training of {trainer.trial.name}, which has failed")
        return trainer.status in ("finished", "diverged")

    def _fail(self, standing: Standing, why: str) -> None:
        standing.status, standing.why = "failed", why
        failure(standing.trial, why).write(standing.folder)

    def _collect(self) -> None:
        for slot, (job, standings) in list(self._jobs.items()):
            code = job.poll()
            if code is None:
                for standing in standings:
                    self._note_result(standing)
                continue
            del self._jobs[slot]
            for standing in standings:
                self._note_result(standing)
            if any(standing.has_ended for standing in standings):  # the job has made progress, so reset the count
                for standing in standings:
                    standing.deaths = 0
            for standing in standings:
                if standing.status == "running":
                    self._ended_without_result(standing, standings[0].folder / OUTPUT, code)

    def _ended_without_result(self, standing: Standing, output: Path, code: int) -> None:
        standing.status = "waiting"
        if code in _NO_DEATH or self._stopping:
            return
        if code == exit_codes.USER_ERROR:
            self._fail(standing, f"{_last_line(output)} ({output})")
            return
        newest = max((int(p.name) for p in (standing.folder / "checkpoints").glob("*") if p.name.isdigit()), default=-1)
        standing.deaths = standing.deaths + 1 if newest <= standing.newest else 1
        standing.newest = newest
        logger.warning("%s: its process exited with code %d and is started again", standing.trial.name, code)
        if standing.deaths >= MAX_DEATHS:
            self._fail(
                standing, f"died {MAX_DEATHS} times without a new checkpoint, last with exit code {code} ({output})"
            )

    def _note_result(self, standing: Standing) -> None:
        result = result_of(standing.trial, standing.folder)
        if result is not None:
            standing.status, standing.why = result.status, result.why

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._stopping and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._stopping, self.stopped_by = True, number
        logger.warning(
            "%s: running trials save a checkpoint and stop; run the same command again to resume",
            signal.Signals(number).name,
        )
        self._stop_jobs()

    def _stop_jobs(self) -> None:
        for job, _ in self._jobs.values():
            job.stop()


def _last_line(file: Path) -> str:
    try:
        lines = read_text(file, errors="replace").splitlines()
    except OSError:
        return "no output"
    return lines[-1] if lines else "no output"
