"""Train a model; the same command run again resumes the training.

    transformer-jax train --config=quickstart --workdir=runs/first --config.model.norm_position=post
    transformer-jax train --workdir=runs/first

Without --config, training resumes with the config of the work directory, WORKDIR/config.json, which must be that of the
newest checkpoint: a file that was edited is refused. The config may be changed with
--config.FIELD=VALUE in fields that only say when something is logged, validated or saved (such as
training.log_every_steps), or how the same numbers are computed; other changes need --allow_config_change.

After the last step, a line compares the model with cheap baselines of the validation split, such as naive Bayes, if the
task has them; see --baselines of `evaluate`.

The files are WORKDIR/config.json, metrics.jsonl, tensorboard/ and checkpoints/STEP/. On Ctrl-C, SIGTERM or SIGUSR1 the
command saves a checkpoint, within two steps, and exits with code 130, 143 or 138. A job queue can use the code to start
the command again.

Several processes can train together, each on its own devices. Start the same command for each with
--coordinator=HOST:PORT --num_processes=N --process_id=0, 1, ..., or with `srun` and --cluster=slurm. All of them must
see the same folder WORKDIR. If one process dies, the others exit within a minute, with exit code 4 or SIGABRT.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from transformer_jax.checkpoints.workdir import CONFIG, config_of_run, lasting_differences, read_stored_config
from transformer_jax.cli.arguments import Arguments, config_flag, path_flag, switch
from transformer_jax.cli.config_notes import say_fitted, say_moved_defaults
from transformer_jax.cli.failures import user_message
from transformer_jax.cli.processes import in_job, job_of, process_flags
from transformer_jax.config import ExperimentConfig, ReadConfig
from transformer_jax.config_file import config_of_values, read_with_sources
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.terminal import say

if TYPE_CHECKING:
    from transformer_jax.training.loop import TrainResult

logger = logging.getLogger(__name__)

OVERRIDES = ("config",)


def define(values: flags.FlagValues) -> None:
    config_flag(values)
    path_flag(values, "workdir", "folder of the run; made if it does not exist")
    process_flags(values)
    switch(values, "allow_config_change", "continue in a work directory that was trained with another config")


def run(arguments: Arguments) -> int:
    workdir = Path(arguments.required("workdir"))
    read, job = _config(arguments, workdir), job_of(arguments)
    if job is None or not job.process_id:
        say(f"training in {workdir}")  # the imports that follow take seconds
        say_moved_defaults(read)
        say_fitted(read)
    _check_fitted(read, workdir, arguments.flags.allow_config_change)
    ended = []
    with in_job(job):
        ended.append(_train(read.config, workdir, arguments.flags.allow_config_change))
    [result] = ended
    if result.reason == "finished" and (job is None or not job.process_id):
        _say_baselines(read.config, workdir, result)
    return exit_codes.OF_REASON[result.reason]


def _config(arguments: Arguments, workdir: Path) -> ReadConfig:
    """Return the config of --config, or else that of the work directory; raises ConfigError if there is neither."""
    if arguments.flags.config:
        return read_with_sources(arguments.flags.config, arguments.overrides)
    stored = config_of_run(workdir, arguments.flags.allow_config_change)
    if stored is None:
        raise ConfigError(
            f"--config=... is missing, and {workdir} has no {CONFIG} to resume with; name a config (see --help)"
        )
    file, values = stored
    return config_of_values(values, file, arguments.overrides)


def _check_fitted(read: ReadConfig, workdir: Path, allow_config_change: bool) -> None:
    """Raise ConfigError if only sizes that follow from the user's files differ from the run in the work directory."""
    stored = read_stored_config(Path(os.path.expanduser(workdir))) if read.fitted and not allow_config_change else None
    if stored is None:
        return
    lines = lasting_differences(stored, read.config.to_dict(), CONFIG)
    sources = read.sources()
    if lines and all(name in sources and sources[name].kind in ("data", "derived") for name in lines):
        listing = "\n".join(f"  - {line}" for line in lines.values())
        raise ConfigError(
            f"{workdir}: fields that follow from the files in {read.config.data.dir} differ from those of this run\n"
            f"{listing}\nIf the files have changed, restore them or choose another --workdir. If flags of the first "
            f"command are missing, give them, or leave out --config to go on with the fields of {CONFIG}"
        )


def _train(config: ExperimentConfig, workdir: Path, allow_config_change: bool) -> TrainResult:
    from transformer_jax.evaluation.evaluator import make_validate
    from transformer_jax.host.compilation_cache import use_compilation_cache
    from transformer_jax.training.run import train

    use_compilation_cache()
    return train(config, workdir, make_validate, allow_config_change=allow_config_change)


def _say_baselines(config: ExperimentConfig, workdir: Path, result: TrainResult) -> None:
    """Print the baselines of the validation split, if the task has them; warn if they fail, since training is done."""
    from transformer_jax.evaluation.after_training import baselines_of_validation

    if result.trained is None:
        return
    try:
        text = baselines_of_validation(config, result.trained.data, workdir, result.metrics)
    except Exception as error:
        message = user_message(error) or repr(error)
        logger.warning("training has finished, but the baselines of the validation split failed: %s", message)
    else:
        if text:
            say(text)
