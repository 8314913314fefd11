"""Trains and scores every variant of a study, one after the other, into a table.

    python -m experiments.run norm_placement --workdir=runs/norm_placement [--config.training.num_train_steps=500 ...]

A study is a module experiments/NAME/study.py with BASELINE, a config file, and VARIANTS, a dict from a name to config
overrides. Each variant has a work directory of its own, WORKDIR/VARIANT; the same command again goes on where it
stopped. A variant whose loss does not stay finite is reported as such, and the study goes on. WORKDIR/results.json
holds what the table shows.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from absl import flags

from transformer_jax.checkpoints.workdir import write_atomically
from transformer_jax.cli import exit_codes
from transformer_jax.cli.arguments import Command, parse, text
from transformer_jax.config import ExperimentConfig, nearest
from transformer_jax.config_file import read_config
from transformer_jax.errors import ConfigError, TrainingError, UserError
from transformer_jax.huge_pages import restart_with_huge_pages

STUDIES = tuple(sorted(file.parent.name for file in Path(__file__).parent.glob("*/study.py")))
OVERRIDES = ("config",)
RESULTS = "results.json"
COLUMNS = ("parameters", "loss", "exact_match", "sacrebleu")


class _StoppedError(Exception):
    """A signal has ended training; the argument is its name."""


def variants(study: str, overrides: Mapping[str, Any] | None = None) -> dict[str, ExperimentConfig]:
    """The resolved config of every variant of a study.

    Args:
      overrides: config fields by dotted name, as on the command line, for every variant alike.
    Raises: ConfigError if there is no such study, or two variants are the same experiment.
    """
    if study not in STUDIES:
        raise ConfigError(f"no study '{study}'{nearest(study, STUDIES)}; there are {', '.join(STUDIES)}")
    module = importlib.import_module(f"experiments.{study}.study")
    repository = Path(__file__).resolve().parent.parent
    configs: dict[str, ExperimentConfig] = {}
    for name, fields in module.VARIANTS.items():
        values = {key: str(value) for key, value in fields.items()} | dict(overrides or {})
        config = read_config(str(repository / module.BASELINE), values)
        same = [other for other, known in configs.items() if known == config]
        if same:
            raise ConfigError(f"study '{study}': variants '{same[0]}' and '{name}' are the same experiment")
        configs[name] = config
    return configs


def run(study: str, workdir: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Trains and scores all variants; returns {variant: {split: metrics}}, or {variant: {"diverged": why}}."""
    import jax

    from transformer_jax.evaluation.evaluator import make_validate
    from transformer_jax.evaluation.run import evaluate
    from transformer_jax.models.encoder_decoder import init_params
    from transformer_jax.training.run import train

    configs = variants(study, overrides)
    results = {name: result for name, result in _earlier_results(workdir).items() if name in configs}
    for name, config in configs.items():
        print(f"== {study}: {name}", file=sys.stderr, flush=True)
        try:
            reason = train(config, workdir / name, make_validate).reason
        except TrainingError as error:  # that a variant does not train is an answer, not the end of the study
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            results[name] = {"diverged": str(error)}
        else:
            if reason != "finished":
                raise _StoppedError(reason)
            shapes = jax.eval_shape(lambda config=config: init_params(config.model, 0))
            count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
            results[name] = {split: m | {"parameters": count} for split, m in evaluate(workdir / name).items()}
        write_atomically(workdir / RESULTS, (json.dumps(results, indent=2, ensure_ascii=False) + "\n").encode())
    return results


def _earlier_results(workdir: Path) -> dict[str, Any]:
    """What a study that is run again has found so far, so that stopping it loses none of it."""
    try:
        return json.loads((workdir / RESULTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Results as Markdown: a row per variant and split."""
    lines = [f"| variant | split | {' | '.join(COLUMNS)} |", "|" + "---|" * (2 + len(COLUMNS))]
    for name, splits in results.items():
        if "diverged" in splits:
            lines.append(f"| {name} | {splits['diverged'].partition(' (')[0]} |" + " |" * len(COLUMNS))
            continue
        for split, metrics in splits.items():
            cells = [f"{metrics[c]:,}" if isinstance(metrics[c], int) else f"{metrics[c]:.2f}" for c in COLUMNS]
            lines.append(f"| {name} | {split} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for what the user can fix, or 130 or 143 if it was told to stop."""
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"}.intersection(words):
        print(inspect.cleandoc(__doc__ or ""))
        return exit_codes.OK
    try:
        study, workdir, overrides = _arguments(words)
        print(table(run(study, workdir, overrides)))
    except UserError as error:
        if "--debug" in words:
            traceback.print_exc()
        print(f"experiments.run: error: {error}", file=sys.stderr)
        return exit_codes.USER_ERROR
    except _StoppedError as stop:
        return exit_codes.OF_REASON[str(stop)]
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    return exit_codes.OK


def define(values: flags.FlagValues) -> None:
    text(values, "workdir", "folder of the study; each variant has one of its own in it")


def _arguments(words: list[str]) -> tuple[str, Path, Mapping[str, Any]]:
    if not words or words[0].startswith("-"):
        raise ConfigError(
            "usage: python -m experiments.run STUDY --workdir=WORKDIR [--config.SECTION.FIELD=VALUE ...]; "
            f"studies are {', '.join(STUDIES)}"
        )
    arguments = parse(cast(Command, sys.modules[__name__]), "python -m experiments.run", words[1:])
    return words[0], Path(arguments.required("workdir")).expanduser(), arguments.overrides


if __name__ == "__main__":
    restart_with_huge_pages()
    sys.exit(main())
