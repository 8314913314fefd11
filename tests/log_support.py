"""Shared by the tests that write the log of a run, and that fill the disk meanwhile."""

import dataclasses

from transformer_jax.config import ExperimentConfig
from transformer_jax.trackers.tracker import TRACKERS
from transformer_jax.training.metric_log import MetricLog

CONFIG = ExperimentConfig().resolved()


def with_trackers(trackers, config=CONFIG):
    return dataclasses.replace(config, training=dataclasses.replace(config.training, trackers=trackers))


def log_of(folder, step, trackers="jsonl,tensorboard"):
    """Return the log of a run with the default config."""
    return MetricLog(with_trackers(trackers), folder, step)


def fill_disk(log, name):
    """Have a tracker's next line meet a full disk."""
    (tracker,) = (tracker for tracker in log._trackers if isinstance(tracker, TRACKERS[name]))
    mode = "wb" if "b" in tracker._file.mode else "w"
    tracker._file.close()
    tracker._file = open("/dev/full", mode)  # noqa: SIM115
