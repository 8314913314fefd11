"""Weights & Biases: offline unless the environment says otherwise, `WANDB_MODE=online`.

WORKDIR/wandb/offline-run-TIME-ID      the run, for `wandb sync`
WORKDIR/wandb/replaced/                what a resumed training has written again: the folders before its last start
WORKDIR/trackers/wandb.json            the ID of the run

An offline run cannot be rewound or continued. So every start writes the whole run again, from metrics.jsonl, under the
same ID, and moves the folder of the start before away. If that was uploaded already, the whole run gets a new ID. An
online run is continued, and the steps that it has are not sent again.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.host import exit_codes
from transformer_jax.trackers.notes import COMPLETE, recall, remember
from transformer_jax.trackers.tracker import Ending, TrackedRun, scalars

_PROJECT = "transformer_jax"
_REPLACED = "replaced"
_EXIT_CODES: Mapping[Ending, int] = {
    "finished": exit_codes.OK,
    "failed": exit_codes.DEFECT,
    "interrupted": exit_codes.INTERRUPTED,
}
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
logger = logging.getLogger(__name__)


class WeightsAndBiases:
    """A run of W&B. An evaluation and a report are runs of their own, in the group of the training or of the sweep."""

    package = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        """Raises: OSError if WORKDIR/wandb cannot be made or written; W&B would take a temporary folder instead."""
        self._run, self._folder = run, run.workdir / "wandb"
        self._folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self._folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self._folder))
        self._is_offline = os.environ.get("WANDB_MODE", "offline") == "offline"
        self._opened: Any = None

    def cut(self, step: int) -> int:
        identity = str(recall(self._run.workdir, self.package).get("id", ""))
        before = sorted(self._folder.glob(f"offline-run-*-{identity}")) if _ID.fullmatch(identity) else []
        if uploaded := [folder for folder in before if any(folder.glob("*.wandb.synced"))]:
            logger.warning(
                "%s: has been uploaded to W&B already, and cannot be continued; the whole run gets a new ID",
                uploaded[0],
            )
        if uploaded or not _ID.fullmatch(identity):
            identity = uuid.uuid4().hex[:16]
        remember(self._run.workdir, self.package, {"id": identity})
        if self._is_offline:
            for folder in before:
                if folder not in uploaded:
                    (self._folder / _REPLACED).mkdir(exist_ok=True)
                    shutil.move(folder, self._folder / _REPLACED)
        run = self._open(identity)
        return run.step - 1 if run.resumed else 0

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        run = self._open()
        if step >= run.step and (numbers := scalars(split, metrics)):
            run.log(numbers, step=step)

    def attach(self, file: Path, name: str) -> None:
        """Copy a file into the folder of the run, and thus among its files."""
        run = self._open()
        copy = Path(run.dir) / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        run.save(str(copy), base_path=run.dir, policy="now")

    def finish(self, ending: Ending) -> None:
        if self._opened is not None:
            self._opened.finish(exit_code=_EXIT_CODES[ending])
            if self._run.job == "train" and ending == "finished":
                # Another start of the finished run would write all of it again, or give an uploaded one a new ID.
                remember(self._run.workdir, self.package, {"id": self._opened.id, COMPLETE: True})

    def _open(self, identity: str | None = None) -> Any:
        """Return the run; begin it if there is none yet, under an ID or else under a new one."""
        if self._opened is None:
            import wandb

            about = self._run
            is_training = about.job == "train"
            self._opened = wandb.init(
                mode="offline" if self._is_offline else None,
                dir=about.workdir,
                project=os.environ.get("WANDB_PROJECT", _PROJECT),
                group=os.environ.get("WANDB_RUN_GROUP", about.group),
                job_type=about.job,
                name=about.name if is_training else f"{about.name} {about.job}",
                id=identity,
                resume=None if self._is_offline or not is_training else "allow",
                config={**(_nested(about.config) if about.job != "report" else {}), "run": about.facts},
                reinit="create_new",  # trials that train together are several runs of one process
                # Nothing is asked of the network or of the machine, and W&B's own record of the command, which would
                # have the passwords in it, is left out.
                settings=wandb.Settings(
                    console="off",
                    silent=True,
                    disable_code=True,
                    disable_git=True,
                    x_disable_meta=True,
                    x_disable_machine_info=True,
                    x_disable_stats=True,
                ),
            )
        return self._opened


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as nested dictionaries."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        *sections, leaf = name.split(".")
        place = result
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    return result
