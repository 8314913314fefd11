"""Train a model; the same command run again resumes the training.

    transformer-jax train --config=quickstart --workdir=runs/first --config.model.norm_position=post
    transformer-jax train --workdir=runs/first

Without --config, training resumes with the config of the work directory, WORKDIR/config.json, which must be that of the
newest checkpoint: a file that was edited is refused. The config may be changed with
--config.FIELD=VALUE in fields that only say when something is logged, validated or saved (such as
training.log_every_steps), or how the same numbers are computed; other changes need --allow_config_change.

The files are WORKDIR/config.json, metrics.jsonl, tensorboard/ and checkpoints/STEP/. On Ctrl-C, SIGTERM or SIGUSR1 the
command saves a checkpoint, within two steps, and exits with code 130, 143 or 138. A job queue can use the code to start
the command again.

Several processes can train together, each on its own devices. Start the same command for each with
--coordinator=HOST:PORT --num_processes=N --process_id=0, 1, ..., or with `srun` and --cluster=slurm. All of them must
see the same folder WORKDIR. If one process dies, the others exit within a minute, with exit code 4 or SIGABRT.
"""

from pathlib import Path

from absl import flags

from transformer_jax import exit_codes
from transformer_jax.checkpoints.workdir import CONFIG, config_of_run
from transformer_jax.cli.arguments import Arguments, config_flag, path_flag, switch
from transformer_jax.cli.help import value_text
from transformer_jax.cli.processes import job_of, joined, process_flags
from transformer_jax.config import ExperimentConfig, ReadConfig, walk
from transformer_jax.config_file import config_of_values, read_with_sources
from transformer_jax.errors import ConfigError
from transformer_jax.terminal import say

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
    reasons = []
    with joined(job):
        reasons.append(start(read.config, workdir, arguments.flags.allow_config_change))
    return exit_codes.OF_REASON[reasons[0]]


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


def say_moved_defaults(read: ReadConfig) -> None:
    """Print in one line the derived defaults that the flags have moved, with their values in the file; or nothing."""
    if moved := read.moved_defaults():
        say("; ".join(map(str, moved)))


def say_fitted(read: ReadConfig) -> None:
    """Print in one line what follows from the user's files, apart from the model and the optimizer; or nothing."""
    values = {name: value for name, _, value in walk(read.config) if name in read.fitted}
    shown = [f"{n}={value_text(v)}" for n, v in values.items() if n.split(".")[0] in ("task", "data", "training")]
    if shown:
        say(f"from the data: {' '.join(shown)}")


def start(config: ExperimentConfig, workdir: Path, allow_config_change: bool = False) -> str:
    """Train, and return the reason why training ended (`TrainResult.reason`); raises as `training.run.train`."""
    from transformer_jax.compilation_cache import use_compilation_cache
    from transformer_jax.evaluation.evaluator import make_validate
    from transformer_jax.training.run import train

    use_compilation_cache()
    return train(config, workdir, make_validate, allow_config_change=allow_config_change).reason
