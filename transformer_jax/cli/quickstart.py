"""Train a small model on the embedded corpus, score it and show translations; takes a few minutes on two cores.

    transformer-jax quickstart
    transformer-jax quickstart --workdir=runs/post --config.model.norm_position=post

Needs no files and no network. The same command run again resumes the training; if that is complete, it only scores.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from transformer_jax.cli.arguments import Arguments, config_flag, path_flag, switch
from transformer_jax.cli.config_notes import say_moved_defaults
from transformer_jax.config import ExperimentConfig
from transformer_jax.config_file import read_with_sources
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text
from transformer_jax.host.terminal import say
from transformer_jax.readers import read_text

OVERRIDES = ("config",)
CONFIG = "quickstart"
SPLITS = ("test", "test_longer")
NUM_EXAMPLES = 5


def define(values: flags.FlagValues) -> None:
    config_flag(values, CONFIG)
    path_flag(values, "workdir", "folder of the run; made if it does not exist", "runs/quickstart")
    switch(values, "allow_config_change", "continue in a work directory that was trained with another config")


def run(arguments: Arguments) -> int:
    spec, workdir = arguments.required("config"), Path(arguments.required("workdir"))
    read = read_with_sources(spec, arguments.overrides)
    config = read.config
    say(f"training in {workdir}")  # the imports that follow take seconds

    from transformer_jax.data.sources import load_source
    from transformer_jax.evaluation.evaluator import make_validate
    from transformer_jax.evaluation.scoring import evaluate
    from transformer_jax.host.compilation_cache import use_compilation_cache
    from transformer_jax.training.run import train

    splits = [name for name in SPLITS if name in load_source(config.data).split_names]
    if "test" not in splits:
        raise ConfigError("quickstart scores the split `test`, which this corpus lacks; use transformer-jax train")
    say_moved_defaults(read)
    use_compilation_cache()
    result = train(config, workdir, make_validate, allow_config_change=arguments.flags.allow_config_change)
    if result.reason != "finished":
        return exit_codes.OF_REASON[result.reason]
    evaluate(workdir, splits)
    _compare_with_memory(config, workdir, splits)
    _print_files(workdir)
    return exit_codes.OK


def _compare_with_memory(config: ExperimentConfig, workdir: Path, splits: Sequence[str]) -> None:
    """Print the scores of a nearest-neighbour baseline, and some translations with their references."""
    from transformer_jax.data.sources import load_source
    from transformer_jax.evaluation.nearest_neighbour import NearestNeighbour
    from transformer_jax.tasks.metrics.text import translation_scores

    source = load_source(config.data)
    train, folder = source.split("train"), workdir / "evaluation"
    memory = NearestNeighbour(train.features["inputs"], train.features["targets"])
    print("\nFor comparison, a baseline that copies the translation of the most similar training sentence:")
    baseline = {}
    for name in splits:
        split = source.split(name)
        scores = baseline[name] = translation_scores(
            memory.predict(split.features["inputs"]), split.features["targets"]
        )
        print(f"  {name:<12} exact match {scores['exact_match']:.2f} %, sacreBLEU {scores['sacrebleu']:.2f}")
    (folder / "nearest_neighbour.json").write_text(json_text(baseline, indent=2) + "\n", encoding="utf-8")

    print("\nFive sentences of the test split:")
    test = source.split("test")
    translations = read_text(folder / "test.txt").split("\n")
    inputs, targets = test.features["inputs"], test.features["targets"]
    for index in range(0, len(inputs), -(-len(inputs) // NUM_EXAMPLES)):
        print(f"\n  {inputs[index]}\n  -> {translations[index]}")
        if translations[index] != targets[index]:
            print(f"  (reference: {targets[index]})")


def _print_files(workdir: Path) -> None:
    print(f"\nThe files are in {workdir.absolute()}:")
    for path in sorted(path for pattern in ("*", "checkpoints/*", "evaluation/*") for path in workdir.glob(pattern)):
        if not path.name.startswith("."):
            print(f"  {path}{'/' if path.is_dir() else ''}")
