"""Every architecture and task from training to use: a stopped run, its scores, and the commands that read it."""

import json
import os
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from data_support import prepared
from kinds_support import EXAMPLES, KINDS, trained_kind, write_kind
from run_support import LOGGED, TOTAL, argv, assert_same_run, at, metric_lines, run_main, train

from transformer_jax.config_file import read_config
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.training import loop, session

NUMBERS = r"[\d ]*\n"


@pytest.fixture(autouse=True, scope="module")
def examples():
    """Let Python find the parts from outside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield


class Use(NamedTuple):
    """A command that reads a run.

    shown: a pattern of its whole output, or of a part of its message if it fails. written: a file in the run.
    """

    words: Sequence[str]
    shown: str = "(?s).*"
    code: int = 0
    written: str = ""


class Lifecycle(NamedTuple):
    """What is expected of a run. `{run}` and `{folder}` in a command are the work directory and its corpus."""

    scores: set[str]
    """Names in the file of scores."""
    lines: int = 0
    """Number of texts or predictions beside the scores."""
    learned: str = ""
    """A score that is 100: the model has learned its examples."""
    evaluate: Sequence[str] = ()
    uses: Sequence[Use] = ()
    flags: Sequence[str] = ()
    """Flags of all commands but `train`."""
    fails_at: int = 0
    """Step of an evaluation, before the first checkpoint, at which the run fails; else it is stopped by a signal."""
    logged: frozenset[str] = frozenset()
    """Names in the lines of training."""
    shown: str = ""
    """A part of what `evaluate` prints."""
    fast: bool = False


TRANSLATION = {"loss", "perplexity", "sacrebleu", "exact_match", "unfinished"}
FILM = "the dog saw cat number 1"
LIFECYCLES = {
    "translation": Lifecycle(
        TRANSLATION,
        lines=11,
        evaluate=("--evaluation.average_checkpoints=2",),
        uses=(Use(("generate", "--checkpoint={run}/checkpoints/8", "--text=1 2 3"), NUMBERS),),
    ),
    "packed": Lifecycle(TRANSLATION, lines=11, evaluate=("--decode.beam_size=3",)),
    "pair rows": Lifecycle(
        TRANSLATION | {"over_length"},
        lines=11,
        evaluate=("--decode.beam_size=2",),
        uses=(Use(("inspect",)), Use(("attention", "--text=1 2"))),
    ),
    "recurrent": Lifecycle(
        TRANSLATION,
        lines=11,
        evaluate=("--decode.beam_size=3",),
        uses=(
            Use(("generate", "--text=1 2 3"), NUMBERS),
            Use(("generate", "--text=1 2 3", "--decode.method=sample"), "(?s).+"),
            Use(("generate", "--text="), "\n"),  # an empty source has an empty translation
            Use(
                ("attention", "--text=1 2 3", "--target=3 2 1"),
                written="attention/decoder_cross_attention_layer_0.png",
            ),
            Use(("inspect",), "(?s)(?!.*not counted).*"),
        ),
    ),
    "recurrent language model": Lifecycle(
        {"loss", "word_perplexity", "bits_per_byte"},
        uses=(
            Use(("generate", "--text=the cat", "--decode.max_new_tokens=3", "--decode.beam_size=2"), "the cat.*\n"),
            Use(("generate", "--text=", "--decode.max_new_tokens=3"), ".*\n"),
            Use(("attention", "--text=1 2"), "model.attention='none': this recurrent model has no attention", 2),
        ),
    ),
    "masked_lm": Lifecycle({"loss", "accuracy"}),
    "classification": Lifecycle(
        {"loss", "accuracy"},
        lines=10,
        learned="accuracy",
        uses=(Use(("predict", f"--text={FILM}"), r"1\t[\d.]+\n"),),
        fails_at=25,
    ),
    "decoder classification": Lifecycle(
        {"loss", "accuracy"}, lines=10,
        learned="accuracy", uses=(Use(("predict", f"--text={FILM}"), r"1\t[\d.]+\n"),)
    ),
    "recurrent classification": Lifecycle(
        {"loss", "accuracy"}, lines=10,
        learned="accuracy", uses=(Use(("predict", f"--text={FILM}"), r"1\t[\d.]+\n"),)
    ),
    "recurrent tagging": Lifecycle(
        {"loss", "f1"},
        lines=10,
        learned="f1",
        uses=(Use(("predict", f"--text={FILM}"), "O B-X O B-X I-X O\n"),),
        fails_at=25,
    ),
    "span_qa": Lifecycle(
        {"loss", "exact_match", "f1"},
        lines=10,
        learned="exact_match",
        uses=(Use(("predict", f"--text={json.dumps({'question': 'who saw it ?', 'context': FILM})}"), "dog\n"),),
    ),
    "text to text": Lifecycle(
        {"loss", "perplexity", "exact_match", "rouge1", "rouge2", "rougeL", "empty", "unfinished", "baselines"},
        lines=10,
        learned="rougeL",
        shown="best sentence (oracle)",
        uses=(
            Use(("generate", f"--text={FILM}"), "positive\n"),  # the prefix of training is put in front
            Use(("compare", "{run}", "{run}/checkpoints/30", "--samples=50"), "(?s).*ROUGE-L.*"),
        ),
    ),
    "augmented images": Lifecycle(
        {"loss", "accuracy", "confusion"},
        lines=9,
        shown="predicted label",
        uses=(Use(("predict", "--image={folder}/test/light/1.png"), r"(dark|light|striped)\t[\d.]+\n"),),
        fast=True,
    ),
    "architecture from outside": Lifecycle(
        TRANSLATION, lines=11, evaluate=("--decode.beam_size=3",), flags=("--trust=outside",)
    ),
    "parts from outside": Lifecycle(
        {"loss", "word_perplexity", "bits_per_byte"},
        uses=(
            Use(("generate", "--text=the cat", "--decode.max_new_tokens=3", "--decode.beam_size=2"), "the cat.*\n"),
            Use(("inspect",), "(?s)(?!.*not counted).*"),
            Use(("convert", "--to={folder}/hf"), "model.feed_forward|model.layer_kinds='M: mixer=running_mean", 2),
            Use(("plot", "--output={folder}/plots"), "(?s).*position_encoding=kerple:KERPLE: it is from outside.*"),
        ),
        flags=(f"--trust={','.join(path.stem for path in EXAMPLES.glob('*.py'))}",),
    ),
    "task from outside": Lifecycle(
        {"loss", "error"},
        uses=(Use(("compare", "{run}", "{run}", "--samples=50"), "(?s).*error.*"),),
        flags=("--trust=outside",),
        logged=frozenset({"error"}),
        fast=True,
    ),
}  # fmt: skip
KINDS_OF_RUNS = [pytest.param(k, marks=() if row.fast else pytest.mark.slow) for k, row in LIFECYCLES.items()]
every_kind = pytest.mark.parametrize("kind", KINDS_OF_RUNS)


def last_step(kind: str) -> int:
    return KINDS[kind].training.get("num_train_steps", 8)


@every_kind
def test_a_stopped_run_ends_like_the_whole_one(tmp_path, monkeypatch, capsys, kind):
    """Bit for bit, whether it resumes from a checkpoint or begins again beside the files that it has left."""
    row, folder, steps = LIFECYCLES[kind], write_kind(tmp_path, kind), last_step(kind)

    def fail():
        raise RuntimeError("the machine is on fire")

    with monkeypatch.context() as patch:
        if row.fails_at:
            patch.setattr(session, "kill_point", at("inside_evaluation", row.fails_at, fail))
            with pytest.raises(RuntimeError, match="on fire"):
                train(folder)
        else:
            stop = at("after_batch", steps - 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
            patch.setattr(loop, "kill_point", stop)
            assert train(folder) == 143
    assert train(folder) == 0
    assert ("resuming" in capsys.readouterr().err) != bool(row.fails_at)
    assert_same_run(folder, trained_kind(kind), steps)
    for name in ("tokenizer.model", "labels.json"):
        ours, theirs = (path / "run" / name for path in (folder, trained_kind(kind)))
        assert ours.exists() == theirs.exists()
        assert not ours.exists() or ours.read_bytes() == theirs.read_bytes()


@pytest.fixture
def copied(tmp_path, kind) -> Path:
    """A copy of a trained run and its corpus, to which commands may add files."""
    return Path(shutil.copytree(trained_kind(kind), tmp_path / "copy"))


@every_kind
def test_scores(copied, capsys, kind):
    row = LIFECYCLES[kind]
    lines = metric_lines(copied / "run")
    assert lines[-1]["step"] == last_step(kind)
    assert row.logged | {"loss"} <= {name for line in lines if line["split"] == "train" for name in line}
    assert run_main(argv("evaluate", copied, "--splits=test", *row.evaluate, *row.flags)) == 0
    assert row.shown in capsys.readouterr().out
    scores = json.loads((copied / "run" / "evaluation" / "test.json").read_text())
    assert scores.keys() >= row.scores
    assert not row.learned or scores[row.learned] == 100
    texts = copied / "run" / "evaluation" / "test.txt"
    assert (len(texts.read_text().splitlines()) if texts.exists() else 0) == row.lines


@pytest.mark.parametrize("kind", [p for p in KINDS_OF_RUNS if LIFECYCLES[p.values[0]].uses])
def test_uses(copied, capsys, kind):
    row = LIFECYCLES[kind]
    for use in row.uses:
        command, *words = (word.replace("{run}", f"{copied / 'run'}") for word in use.words)
        words = [word.replace("{folder}", f"{copied}") for word in words]
        checkpoint = [] if any(str(copied / "run") in word for word in words) else [f"--checkpoint={copied / 'run'}"]
        capsys.readouterr()
        assert run_main([command, *checkpoint, *words, *row.flags]) == use.code, words
        out, err = capsys.readouterr()
        assert re.search(use.shown, err) if use.code else re.fullmatch(use.shown, out), (words, out, err)
        assert (copied / "run" / use.written).exists()


@pytest.mark.slow
def test_the_log_has_the_share_of_filled_slots():
    folder = trained_kind("packed")
    config = read_config(str(folder / "run" / "config.json"))
    plan = training_batches(config, prepared(config, folder / "run").splits["train"])
    assert 1 < plan.batches_per_epoch < TOTAL
    lines = [line for line in metric_lines(folder / "run") if line["split"] == "train"]
    for first, last, line in zip((0, *LOGGED), LOGGED, lines, strict=False):
        sides = [plan.batch(step)[side] for step in range(first, last) for side in ("inputs", "targets")]
        filled, slots = (sum(map(count, sides)) for count in (np.count_nonzero, np.size))
        assert line["padding_efficiency"] == filled / slots
