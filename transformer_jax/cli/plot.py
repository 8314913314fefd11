"""Draw position encoding, masks and learning-rate schedule of a config or checkpoint, or the blocks of its model.

    transformer-jax plot --config=wmt14:base --output=runs/plots
    transformer-jax plot --checkpoint=runs/first
    transformer-jax plot --diagram --config=quickstart --output=diagram.svg --config.model.norm_position=post

A position encoding is drawn as a table and by its inner products at every distance. A relative one is drawn as its
buckets. With --checkpoint, learned tables and biases are drawn too. The masks are those of small examples.

With --diagram, the model itself is drawn instead, with all blocks that the config chooses. An architecture from outside
of this package is a box with its name.
"""

from pathlib import Path

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, config_flag, path_flag, switch
from transformer_jax.config import RECURRENT, ExperimentConfig
from transformer_jax.config_file import read_config
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes

OVERRIDES = ("config",)


def define(values: flags.FlagValues) -> None:
    config_flag(values)
    checkpoint_flag(values)
    switch(values, "diagram", "draw the blocks of the model, in place of positions, masks and schedule")
    path_flag(
        values,
        "output",
        "folder for the PNG files; with --diagram a file that ends in .svg, .pdf or .png; default with --checkpoint: "
        "WORKDIR/plots, and in it diagram.svg",
    )


def run(arguments: Arguments) -> int:
    values, params = arguments.flags, None
    if bool(values.config) == bool(values.checkpoint):
        raise ConfigError("plot takes one of --config=FILE.py and --checkpoint=WORKDIR")
    if values.checkpoint and arguments.overrides:
        raise ConfigError(
            "--config.FIELD overrides fields of a config file; those of a checkpoint cannot be overridden"
        )
    if values.diagram and values.output:
        from transformer_jax.inspection.drawing import check_ending

        check_ending(Path(values.output), "output")
    if values.config:
        config, folder = read_config(values.config, arguments.overrides), Path(arguments.required("output"))

    from transformer_jax.evaluation.loading import load
    from transformer_jax.inspection.pictures import output_folder
    from transformer_jax.inspection.plots import write_plots

    given = None
    if values.output:
        path = Path(values.output)
        given = output_folder(path.absolute().parent) / path.name if values.diagram else output_folder(path)
    if values.checkpoint:
        loaded = load(Path(values.checkpoint))
        config, params, folder = loaded.config, loaded.params, loaded.folder("plots")
    if values.diagram:
        return _draw_diagram(config, given or output_folder(folder) / "diagram.svg")
    for path, what in write_plots(config, params, given or output_folder(folder)).items():
        print(f"{path}: {what}")
    encoding = config.model.position_encoding
    if config.model.architecture == RECURRENT:
        print(f"model.architecture={RECURRENT}: there are no positions and no masks to draw")
    elif ":" in encoding:
        print(f"position_encoding={encoding}: it is from outside the package, which has no picture of it")
    elif encoding == "none":
        print("position_encoding=none: there is no encoding to draw")
    elif config.model.has_position_table and params is None:
        print("position_encoding=learned: to draw the learned table, pass --checkpoint=WORKDIR")
    return exit_codes.OK


def _draw_diagram(config: ExperimentConfig, file: Path) -> int:
    from transformer_jax.inspection.diagram import model_diagram
    from transformer_jax.inspection.drawing import write_drawing

    drawing = model_diagram(config)
    print(f"{write_drawing(drawing, file)}: {drawing.alt}")
    return exit_codes.OK
