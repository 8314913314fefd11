"""Draw the position encoding, masks and learning-rate schedule of a config, or of a checkpoint as trained.

    transformer-jax plot --config=wmt14:base --output=runs/plots
    transformer-jax plot --checkpoint=runs/first

A position encoding is drawn as a table and by its inner products at every distance. A relative one is drawn as its
buckets. With --checkpoint, learned tables and biases are drawn too. The masks are those of two small examples.
"""

from pathlib import Path

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, config_flag, path_flag
from transformer_jax.config import RECURRENT
from transformer_jax.config_file import read_config
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes

OVERRIDES = ("config",)


def define(values: flags.FlagValues) -> None:
    config_flag(values)
    checkpoint_flag(values)
    path_flag(values, "output", "folder for the PNG files; default with --checkpoint: WORKDIR/plots")


def run(arguments: Arguments) -> int:
    values, params = arguments.flags, None
    if bool(values.config) == bool(values.checkpoint):
        raise ConfigError("plot takes one of --config=FILE.py and --checkpoint=WORKDIR")
    if values.checkpoint and arguments.overrides:
        raise ConfigError(
            "--config.FIELD overrides fields of a config file; those of a checkpoint cannot be overridden"
        )
    if values.config:
        config, folder = read_config(values.config, arguments.overrides), Path(arguments.required("output"))

    from transformer_jax.evaluation.loading import load
    from transformer_jax.inspection.pictures import output_folder
    from transformer_jax.inspection.plots import write_plots

    given = output_folder(Path(values.output)) if values.output else None
    if values.checkpoint:
        loaded = load(Path(values.checkpoint))
        config, params, folder = loaded.config, loaded.params, loaded.folder("plots")
    for path, what in write_plots(config, params, given or output_folder(folder)).items():
        print(f"{path}: {what}")
    encoding = config.model.position_encoding
    if config.model.architecture == RECURRENT:
        print(f"model.architecture={RECURRENT}: there are no positions and no masks to draw")
    elif encoding == "none":
        print("position_encoding=none: there is no encoding to draw")
    elif config.model.has_position_table and params is None:
        print("position_encoding=learned: to draw the learned table, pass --checkpoint=WORKDIR")
    return exit_codes.OK
