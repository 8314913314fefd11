"""MLflow: in a SQLite database of the run or of its sweep, unless `MLFLOW_TRACKING_URI` names another store.

HOME/mlflow.db, HOME/mlartifacts     the store, with all trials of a sweep; HOME is the sweep's folder, or WORKDIR
WORKDIR/trackers/mlflow.json         the ID of the run

MLflow cannot forget the steps of a metric. So a resumed training continues its run, and steps that the run has already
are not written again: they would have the same values.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.trackers.notes import recall, remember
from transformer_jax.trackers.tracker import Ending, TrackedRun, scalars

_EXPERIMENT = "transformer_jax"
_LOCK_SECONDS = 60
_TOGETHER = 100  # parameters in one call
_STATUS: Mapping[Ending, str] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
logger = logging.getLogger(__name__)


_making = threading.Lock()


def _own_store(home: Path) -> str:
    """Return the URI of the SQLite database in a folder; make it first if there is none.

    MLflow cannot open a database whose making was interrupted. So it is made under another name.
    """
    from mlflow import MlflowClient

    file, temporary = home / "mlflow.db", home / f".mlflow-{uuid.uuid4().hex}.db"
    with _making:
        if not file.exists():
            try:
                MlflowClient(tracking_uri=f"sqlite:///{temporary.as_posix()}").search_experiments(max_results=1)
                with contextlib.suppress(FileExistsError):  # another process was faster
                    os.link(temporary, file)
            finally:
                temporary.unlink(missing_ok=True)
    return f"sqlite:///{file.as_posix()}?timeout={_LOCK_SECONDS}"


class MLflow:
    """A run of MLflow. Evaluations continue the run of the training; a report is a run of its own."""

    package = "mlflow"

    def __init__(self, run: TrackedRun) -> None:
        """Open the store; raises the errors of MLflow, and OSError if the folder cannot be written."""
        # By default, MLflow reports its use to its makers, and tries for minutes to reach a server.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        from mlflow import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells of every new database
        self._run, self._written = run, {}
        place = os.environ.get("MLFLOW_TRACKING_URI")
        self._is_own = not place
        self._client = MlflowClient(tracking_uri=place or _own_store(run.home))
        known = self._known() if run.job != "report" else None
        self._is_mine = run.job != "evaluate" or known is None
        self._id = known or self._begin()

    def cut(self, step: int) -> int:
        last = self._last_steps()
        if not step and last:  # of a training that died before its first checkpoint
            self._client.set_terminated(self._id, "KILLED")
            self._id, last = self._begin(), {}
        self._written = last
        self._client.update_run(self._id, status="RUNNING")
        began_with = self._client.get_run(self._id).data.params
        for name, value in self._run.config.items():
            if began_with.get(name, str(value)) != str(value):  # a parameter cannot be changed
                self._client.set_tag(self._id, f"resumed with {name}", str(value))
        return 0

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        numbers = scalars(split, metrics).items()
        new = [Metric(name, value, now, step) for name, value in numbers if self._written.get(name, -1) < step]
        if new:
            self._client.log_batch(self._id, metrics=new)

    def attach(self, file: Path, name: str) -> None:
        folder = Path(name).parent.as_posix()
        with tempfile.TemporaryDirectory() as place:  # MLflow takes the name of the file
            copy = shutil.copyfile(file, Path(place) / Path(name).name)
            self._client.log_artifact(self._id, str(copy), None if folder == "." else folder)

    def finish(self, ending: Ending) -> None:
        if self._is_mine:
            self._client.set_terminated(self._id, _STATUS[ending])

    def _known(self) -> str | None:
        """Return the ID of the run if the store has it; None for a new run, or with a warning if it was deleted."""
        from mlflow.exceptions import MlflowException

        identity = recall(self._run.workdir, self.package).get("id")
        if not isinstance(identity, str):
            return None
        try:
            if self._client.get_run(identity).info.lifecycle_stage == "active":
                return identity
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        logger.warning("%s: its run %s in MLflow was deleted; it gets a new one", self._run.workdir, identity)
        return None

    def _begin(self) -> str:
        """Begin a run in the experiment of its group, with its config and where it comes from; return its ID."""
        from mlflow.entities import Param

        about = self._run
        name = about.name if about.job != "report" else f"{about.name} report"
        facts = {**about.facts, "mlflow.source.name": about.facts["command"]}
        tags = {**facts, "workdir": str(about.workdir), "job": about.job, "group": about.group}
        identity = self._client.create_run(self._experiment(), run_name=name, tags=tags).info.run_id
        if about.job != "report":
            config = [Param(name, str(value)) for name, value in about.config.items()]
            for first in range(0, len(config), _TOGETHER):
                self._client.log_batch(identity, params=config[first : first + _TOGETHER])
            remember(about.workdir, self.package, {"id": identity})
        return identity

    def _experiment(self) -> str:
        """Return the ID of the experiment, which is made if necessary, also by several processes at once."""
        from mlflow.exceptions import MlflowException

        about = self._run
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or (about.group if about.is_in_sweep else _EXPERIMENT)
        artifacts = (about.home / "mlartifacts").as_uri() if self._is_own else None
        if (found := self._client.get_experiment_by_name(name)) is None:
            try:
                return self._client.create_experiment(name, artifact_location=artifacts)
            except MlflowException:
                if (found := self._client.get_experiment_by_name(name)) is None:
                    raise
        return found.experiment_id

    def _last_steps(self) -> dict[str, int]:
        """Return the last step of every metric that the run has."""
        names = self._client.get_run(self._id).data.metrics
        return {name: max(metric.step for metric in self._client.get_metric_history(self._id, name)) for name in names}
