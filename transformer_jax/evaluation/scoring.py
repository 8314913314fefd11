"""Evaluation of a checkpoint, which contains model, task, tokenizer and the settings of the corpus.

WORKDIR/evaluation/SPLIT.json             scores of WORKDIR's newest checkpoint, or of an average
WORKDIR/evaluation/SPLIT.txt              its outputs, such as translations, one per line, if they were generated
WORKDIR/evaluation/step_STEP/SPLIT.json   scores of WORKDIR/checkpoints/STEP, if the path named that checkpoint
FOLDER/evaluation/COPY/SPLIT.json         scores of a copied checkpoint, FOLDER/COPY
WORKDIR/evaluation/baselines/SPLIT.json   scores of the baselines, if they were asked for
WORKDIR/evaluation/raw_weights/           scores and outputs of the weights that the optimizer updates, if asked for

SPLIT.json also identifies the evaluation: a fingerprint of parameters, model and tokenizer; the corpus; the settings;
and the sha256 of SPLIT.txt.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config import WEIGHTS, DataConfig, ExperimentConfig
from transformer_jax.data.datasets import Data, prepare_data
from transformer_jax.data.sources import TestFiles, open_test_set
from transformer_jax.data.sources.source import no_such_split
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.evaluation.evaluator import Evaluator
from transformer_jax.evaluation.fingerprint import fingerprint
from transformer_jax.evaluation.loading import Loaded, load, of_training
from transformer_jax.evaluation.table import print_confusions, print_table, print_types
from transformer_jax.evaluation.task_baselines import TaskBaselines, check_has_baselines, has_free_baselines
from transformer_jax.host.files import json_text, with_checksum, without_checksum, write_atomically
from transformer_jax.host.kill_points import kill_point
from transformer_jax.host.terminal import doing, say
from transformer_jax.readers import parse_json, read_bytes
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.lines import NOT_FINITE, ONE_TEXT, on_one_line
from transformer_jax.trackers.results import track_scores
from transformer_jax.training.extras import RAW
from transformer_jax.typing import Params

logger = logging.getLogger(__name__)
_ONLY_TEXT = ("inputs", "second")
"""Features of an example without anything that is predicted; a task that reads no others predicts its own input."""


def evaluate(
    path: Path | str,
    splits: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    generate: bool = True,
    baselines: bool = False,
    files: TestFiles | None = None,
    trust: str | Sequence[str] = (),
    weights: str = "scored",
) -> dict[str, dict[str, Any]]:
    """Score a checkpoint on splits of its corpus, or on other files; print a table and write SPLIT.json for each split.

    The trackers of its config get the scores too.

    Args:
      splits: names; None means all but the training split.
      generate: also generate outputs, such as translations, score them and write them to SPLIT.txt. Otherwise, scores
        of outputs that the files already have of the same checkpoints stay in them.
      baselines: also score the cheap baselines of the task, `task_baselines`. Those that learn nothing are always
        scored with outputs.
      files: a test set to score in place of the corpus, which is then not opened.
      trust: as in `load`.
      weights: `scored`, those that training scores; `raw`, those that the optimizer updates; or `both`. The scores of
        raw weights have files of their own, without baselines.
    Returns: metrics by split; with `both`, also by `SPLIT, raw weights`.
    Raises: CheckpointError, ConfigError as `load`; CheckpointError if training has saved a newer checkpoint between the
      two weights; ConfigError if the task has no baselines, or if weights is another word; DataError if the corpus is
      not the checkpoint's or lacks a split.
    """
    if weights not in WEIGHTS:
        raise ConfigError(f"weights={weights!r}: expected {', '.join(WEIGHTS)}")
    is_raw = weights == RAW
    scorer = Scorer.from_checkpoint(path, overrides, files, trust=trust, baselines=baselines, raw_weights=is_raw)
    scorers = {"": scorer}
    if weights == "both":
        scorers[f", {RAW} weights"] = scorer.with_raw_weights(path, overrides)
    all_names = scorer.evaluator.data.source.split_names
    names = [name for name in all_names if name != "train"] if splits is None else list(splits)
    if not names:
        raise DataError("the corpus has only the split train; pass --splits=train to score it")
    scorer.check_splits(names)
    scorer.warn_of_tabs(names)
    results = {}
    for name in names:
        for suffix, each in scorers.items():
            results[name + suffix] = each.score(name, generate)
        kill_point("inside_evaluation", scorer.loaded.steps[-1])
    print_table(results, scorer.evaluator.task.metrics)
    print_types(results)
    print_confusions(results)
    _tell({name: results[name] for name in names}, scorer.loaded.config.data.max_length)
    for each in scorers.values():
        _name_files(names, each.folder)
    tracked = {suffix: f"_{RAW}" if suffix or is_raw else "" for suffix in scorers}
    scores = {name + end: results[name + suffix] for name in names for suffix, end in tracked.items()}
    track_scores(scorer.loaded.tracked_config, scorer.loaded.workdir, scorer.loaded.steps[-1], scores)
    return results


@dataclasses.dataclass(frozen=True)
class Scorer:
    """A checkpoint, ready to be scored.

    evaluator: has the corpus that the checkpoint was trained on, or other files. folder: of SPLIT.json and SPLIT.txt.
    with_outputs_only: whether the baselines are scored only if outputs are.
    """

    loaded: Loaded
    evaluator: Evaluator
    folder: Path
    files: TestFiles | None = None
    baselines: TaskBaselines | None = None
    with_outputs_only: bool = False

    @classmethod
    def from_checkpoint(
        cls,
        path: Path | str,
        overrides: Mapping[str, Any] | None = None,
        files: TestFiles | None = None,
        *,
        trust: str | Sequence[str] = (),
        baselines: bool = False,
        raw_weights: bool = False,
    ) -> Scorer:
        """Load a checkpoint and its corpus, and print its steps to stderr; arguments and errors are those of `load`.

        Args:
          files: a test set to score in place of the corpus, which is then not opened.
          baselines: also score the baselines of the task.
          raw_weights: as in `load`.
        Raises: DataError if the corpus is not the checkpoint's, or the files cannot be used; ConfigError if SPLIT.json
          of the test set's name has the scores of a split of the corpus, or the task has no baselines.
        """
        loaded = load(path, overrides, trust=trust, raw_weights=raw_weights)
        _check_one_output(loaded.config)
        if baselines:
            check_has_baselines(loaded.config)
            if files is not None and not has_free_baselines(loaded.config):
                raise ConfigError(
                    f"--baselines learn from the training split, and --input={files.input} does without the corpus; "
                    "name the file in data.test_sets, or leave out --baselines"
                )
        _say_steps(loaded)
        columns = TASKS[loaded.config.task.name].columns(loaded.config)
        has_targets = any(column.feature not in _ONLY_TEXT for column in columns)
        source = None if files is None else open_test_set(_reading(loaded.config), files, has_targets)
        data = prepare_data(
            loaded.config, columns, loaded.workdir, loaded.tokenizer, say, source=source, labels=loaded.labels or None
        )
        if source is None:
            _check_corpus(loaded, data)
        of_task = None
        if baselines or has_free_baselines(loaded.config):
            of_task = TaskBaselines(loaded.config, data, loaded.workdir / "evaluation" / "baselines")
        evaluator = Evaluator(loaded.config, data)
        folder = _raw_folder(loaded) if raw_weights else loaded.folder("evaluation")
        scorer = cls(loaded, evaluator, folder, files, of_task, with_outputs_only=not baselines)
        if files is not None:
            scorer._check_name(files.name)
        return scorer

    @classmethod
    def of_training(cls, config: ExperimentConfig, params: Params, data: Data, step: int, workdir: Path) -> Scorer:
        """Return a scorer of parameters that this process has trained; their checkpoint would get the same scores.

        Args:
          config: of the run; params: after its last update; data: its corpus; step: number of updates.
          workdir: of the run.
        Raises: CheckpointError if a parameter is NaN or infinite; ConfigError if an input gets several outputs.
        """
        loaded = of_training(config, params, data, step, workdir)
        _check_one_output(loaded.config)
        _say_steps(loaded)
        return cls(loaded, Evaluator(loaded.config, data), loaded.folder("evaluation"))

    def with_raw_weights(self, path: Path | str, overrides: Mapping[str, Any] | None) -> Scorer:
        """Return a scorer of the raw weights of the same checkpoint, on the same data, without baselines.

        Args:
          path, overrides: of this scorer.
        Raises: as `load`; CheckpointError if the path has a newer checkpoint now.
        """
        loaded = load(path, overrides, raw_weights=True)
        if loaded.steps != self.loaded.steps:
            raise CheckpointError(
                f"{loaded.directory}: training has saved step {loaded.steps[-1]} since step {self.loaded.steps[-1]} "
                "was read; name one checkpoint, as in --checkpoint=WORKDIR/checkpoints/STEP"
            )
        return dataclasses.replace(self, loaded=loaded, folder=_raw_folder(loaded), baselines=None)

    def _check_name(self, name: str) -> None:
        """Raise ConfigError if the name of a test set is that of a split of the corpus."""
        file, _ = self._files(name)
        earlier = _read_scores(file)
        if name in self.loaded.config.data.split_texts() or (earlier and "input" not in earlier):
            raise ConfigError(f"--name={name}: is a split of the corpus, with scores in {file}; choose another name")

    def warn_of_tabs(self, names: Sequence[str]) -> None:
        """Warn of texts with a tab in test files if they could be pairs, but the classifier reads one text."""
        config = self.loaded.config
        if self.files is None or config.task.name != "classification" or config.data.second_feature:
            return
        for name in names:
            count = sum("\t" in text for text in self.evaluator.data.text(name).features["inputs"])
            if count:
                logger.warning("%s: %d texts have a tab; %s", name, count, ONE_TEXT)

    def check_splits(self, names: Sequence[str]) -> None:
        """Check names of splits; raises DataError for a split that the corpus does not have."""
        known = self.evaluator.data.source.split_names
        for name in names:
            if name not in known:
                raise no_such_split(name, known)

    def score(self, split: str, generate: bool = True) -> dict[str, Any]:
        """Score one split, write its files and return its metrics; `generate` as in `evaluate`."""
        metrics = self._model_and_split(split)
        try:
            with doing(f"scoring {split}"):
                scores = self.evaluator.score(self.loaded.params, split, generate)
            check_finite_scores(f"{self.loaded.directory}: split '{split}'", scores.metrics)
        finally:
            self.evaluator.forget()  # a copy of the parameters on one device; `compare` loads several checkpoints
        metrics |= scores.metrics
        if self.baselines is not None and (generate or not self.with_outputs_only):
            metrics["baselines"] = self.baselines.scores(split)
        file, text = self._files(split)
        kept = {}
        if scores.outputs is not None:
            written = "".join(f"{on_one_line(line)}\n" for line in scores.outputs).encode()
            metrics |= self._settings() | {"translations_sha256": _sha256(written)}
            _write(text, written)
        elif kept := self._earlier_output_scores(metrics):
            _warn_if_changed(text, kept.get("translations_sha256"))
        else:
            _remove(text)
        _write_scores(file, metrics | kept)
        return metrics

    def references(self, split: str) -> Sequence[Any] | None:
        """Return the task's references of a split."""
        return self.evaluator.task.references(self.loaded.config, self.evaluator.data, split)

    def earlier_outputs(self, split: str) -> list[str] | None:
        """Return the lines of SPLIT.txt, one per example, if scoring the split now would write the same; else None.

        This is the case if SPLIT.json has the same parameters, tokenizer, corpus and settings, and the sha256 of
        SPLIT.txt.
        """
        file, text = self._files(split)
        try:
            written = read_bytes(text)
        except OSError:
            return None
        wanted = self._model_and_split(split) | self._settings() | {"translations_sha256": _sha256(written)}
        earlier = _read_scores(file)
        if any(field not in earlier or earlier[field] != value for field, value in wanted.items()):
            return None
        try:
            lines = written.decode().split("\n")[:-1]
        except UnicodeDecodeError:
            return None
        return lines if len(lines) == self.evaluator.data.splits[split].num_examples else None

    def outputs(self, split: str) -> list[str]:
        """Return the lines of SPLIT.txt; score the split first unless `earlier_outputs` returns them."""
        _, text = self._files(split)
        if (lines := self.earlier_outputs(split)) is not None:
            say(f"{split}: {text} is reused: it was made with the same parameters and settings")
            return lines
        count = self.evaluator.data.splits[split].num_examples
        say(f"{split}: generating outputs of {count:,} examples into {text}")
        self.score(split)
        return read_bytes(text).decode().split("\n")[:-1]

    @functools.cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.loaded.tokenizer, (self.loaded.config.model, self.loaded.params))

    def _model_and_split(self, split: str) -> dict[str, Any]:
        """Return everything except the settings that determines the scores.

        It includes a fingerprint, because steps alone would not distinguish two trainings.
        """
        task = self.loaded.config.task
        return {
            "split": split,
            "task": dataclasses.asdict(task),
            "checkpoints": list(self.loaded.steps),
            **({"weights": self.loaded.weights} if self.loaded.weights else {}),
            "fingerprint": self._fingerprint,
            "corpus": self.corpus(split),
            **({} if self.files is None else {"input": self.files.input, "reference": self.files.reference}),
        }

    def corpus(self, split: str) -> str:
        """Return the digest of the corpus, or of the split if it is a test set that is not part of the corpus."""
        of_split = self.evaluator.data.source.fingerprint(split)["sha256"]
        own = self.files is not None or of_split != self.evaluator.data.source.fingerprint()["sha256"]
        corpus = self.loaded.corpus or self.evaluator.data.source.fingerprint()
        return of_split if own else corpus["sha256"]

    def _settings(self) -> dict[str, Any]:
        """Return the settings that determine the outputs; those of decoding only if the task generates."""
        config = self.loaded.config
        settings = {"evaluation": dataclasses.asdict(config.evaluation)}
        if any(spec.needs_generation for spec in self.evaluator.task.metrics):
            settings["decode"] = dataclasses.asdict(config.decode.resolved())
        return settings

    def _earlier_output_scores(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the scores of outputs in SPLIT.json if it is of the same checkpoints; otherwise nothing."""
        earlier = _read_scores(self._files(metrics["split"])[0])
        wanted = self._model_and_split(metrics["split"])
        same = all(field in earlier and earlier[field] == value for field, value in wanted.items())
        generated = same and any(s.needs_generation and s.name in earlier for s in self.evaluator.task.metrics)
        return {field: value for field, value in earlier.items() if field not in metrics} if generated else {}

    def _files(self, split: str) -> tuple[Path, Path]:
        """Return the paths of SPLIT.json and SPLIT.txt."""
        return self.folder / f"{split}.json", self.folder / f"{split}.txt"


def _reading(config: ExperimentConfig) -> DataConfig:
    """Return the section that says how a test file is read; JSON lines of `text_to_text` may have lists of texts."""
    data = config.data
    may_have_lists = config.task.name == "text_to_text" and not (
        data.label_names or data.coarse_labels or data.second_feature
    )
    return dataclasses.replace(data, text_lists=True) if may_have_lists else data


def check_finite_scores(name: str, metrics: Mapping[str, Any]) -> None:
    """Raise CheckpointError, which names the metric, if a score is NaN or infinite."""
    for metric, value in metrics.items():
        if isinstance(value, Mapping):
            check_finite_scores(f"{name}, {metric}", value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise CheckpointError(f"{name}: {metric} is {value}; {NOT_FINITE}; score an earlier checkpoint")


def _write_scores(file: Path, scores: Mapping[str, Any]) -> None:
    _write(file, (json_text(with_checksum(scores), indent=2) + "\n").encode())


def _read_scores(file: Path) -> dict[str, Any]:
    """Return the scores in a file, without their checksum; empty if it is missing or damaged."""
    try:
        return without_checksum(parse_json(read_bytes(file)))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        logger.warning("%s: is damaged and is not used: %s", file, error)
        return {}


def _warn_if_changed(text: Path, sha256: Any) -> None:
    """Warn if SPLIT.txt does not have the outputs whose scores are kept."""
    try:
        is_same = _sha256(read_bytes(text)) == sha256
    except OSError:
        is_same = False
    if not is_same:
        logger.warning(
            "%s: is missing or was changed: it does not have the outputs whose scores are kept; "
            "score without --nogenerate to write it again",
            text,
        )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _raw_folder(loaded: Loaded) -> Path:
    return loaded.folder("evaluation") / "raw_weights"


def _tell(results: Mapping[str, Mapping[str, Any]], max_length: int) -> None:
    for name, metrics in results.items():
        if metrics.get("over_length"):
            print(
                f"{name}: {metrics['over_length']:,} examples have a sequence of more than "
                f"data.max_length={max_length} tokens, and training leaves such out; they are scored like the others",
                file=sys.stderr,
            )


def _name_files(names: Sequence[str], folder: Path) -> None:
    for name in names:
        files = [path for path in (folder / f"{name}.json", folder / f"{name}.txt") if path.exists()]
        print(f"{name}: {', '.join(map(str, files))}", file=sys.stderr)


def _check_one_output(config: ExperimentConfig) -> None:
    if config.decode.num_samples > 1:
        raise ConfigError(f"decode.num_samples={config.decode.num_samples}: scoring needs one output per input; use 1")


def _say_steps(loaded: Loaded) -> None:
    steps = ", ".join(map(str, loaded.steps))
    weights = f", {loaded.weights} weights" if loaded.weights else ""
    say(f"{loaded.directory}: step {steps}" + (" averaged" if len(loaded.steps) > 1 else "") + weights)


def _check_corpus(loaded: Loaded, data: Data) -> None:
    if loaded.corpus is None:
        return
    now = data.source.fingerprint()
    if now["sha256"] != loaded.corpus["sha256"]:
        then, current = (f"{of['sha256'][:12]} {of['versions'] or ''}".rstrip() for of in (loaded.corpus, now))
        raise DataError(f"the corpus is not the one this checkpoint was trained on: sha256 {then} then, {current} now")


def _write(file: Path, data: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{file.parent}: cannot be made: {error.strerror}") from error
    write_atomically(file, data)


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{file}: belongs to another checkpoint, but cannot be removed: {error.strerror}"
        ) from error
