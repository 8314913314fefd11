"""Predict a label, tags or an answer for every line, from stdin to stdout, in order.

    transformer-jax predict --checkpoint=runs/sst2 < in.txt > out.tsv
    transformer-jax predict --checkpoint=runs/sst2 --text="a charming journey" --probabilities
    transformer-jax predict --checkpoint=runs/sst2 --input=second.tsv --column=review
    transformer-jax predict --checkpoint=runs/tags --input=second.conll --output=conll --output_file=tagged.conll
    transformer-jax predict --checkpoint=runs/images --image=picture.png --probabilities

| task             | a line of the input                                | a line of the output                        |
|------------------|----------------------------------------------------|---------------------------------------------|
| `classification` | a text; two texts with a tab between them if the   | the label, a tab and its probability        |
|                  | model was trained on pairs                         |                                             |
| `tagging`        | words with spaces between them                     | one tag per word, with spaces between them  |
| `span_qa`        | a JSON object with `question` and `context`        | the answer                                  |
| `images`         | the path of a PNG or JPEG file                     | the label, a tab and its probability        |

--input also takes a file in the formats of training, plain or .gz: FILE.tsv and FILE.jsonl (classification), FILE.conll
and FILE.conllu (tagging), FILE.json as in SQuAD (span_qa). Line n of the output then belongs to example n of the file.
The text is in the column of the checkpoint's config if it reads this format; else in column 1, the key that
data.source_locale names, or FORM. --column=NAME names another one (--column=A,B for two texts): a column of the first
line, a number from 1, or a key. If a model of pairs gets a TSV file of two columns, without the columns of the config,
each line is two texts.

If the file also has labels, tags or answers, stderr gets the table of scores that `evaluate --input=FILE` prints. The
model then runs once more for the scores. A file without labels is predicted all the same.

With --output=jsonl, line n is an object with `line`, the number n, and `label` and `probability`; or `words` and
`tags`; or `answer`, its `score`, and the characters `start` to `end` (exclusive) of the context, and the `id` of a
question of FILE.json. --probabilities adds those of all labels: in text after the label, as NAME=P with tabs between
them; in JSON as `probabilities`. --output=conll, for tags, writes a word, a tab and its tag per line, and an empty line
after each sentence.

An image is converted to the channels of the model, and scaled if the model's corpus was; --data.resize=crop or squash
scales it for any model.

Lines of text are always UTF-8, whatever the locale; a file in a format of training has the data.encoding of the
checkpoint. If a line has no prediction, because it is empty, too long for the model, not valid UTF-8 or of another
form, because its image cannot be read or has another size, or because the model's outputs are not finite numbers, its
output line is empty (in JSON it has `problem`), stderr names it, the other lines are predicted, and the exit code is 3.

Words of a sentence stand between spaces or tabs; a no-break space is part of a word, as in training.

--output_file appears once it is complete. Until then the lines are in FILE.partial: after an interruption, the same
command continues from there, if checkpoint, settings and input are the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar

from absl import flags

from transformer_jax.cli.arguments import (
    Arguments,
    checkpoint_flag,
    comma_separated,
    path_flag,
    switch,
    text,
)
from transformer_jax.cli.input_lines import decoded_lines, num_lines, open_input
from transformer_jax.cli.resumable import open_output
from transformer_jax.config import nearest
from transformer_jax.data.sources import format_of
from transformer_jax.data.sources.formats import Input
from transformer_jax.data.sources.inputs import InputFile, has_lines_of_questions, has_pairs_of_texts, input_file
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import is_finite, json_text
from transformer_jax.host.progress_bars import progress_bar
from transformer_jax.host.terminal import doing, say
from transformer_jax.readers import parse_json
from transformer_jax.readers.records import COUNT
from transformer_jax.tasks.trained.lines import NOT_FINITE, ONE_TEXT, on_one_line

if TYPE_CHECKING:
    from transformer_jax.tasks.trained.predictor import Predictor

OVERRIDES = ("evaluation", "data.resize")

_FORMATS = ("text", "jsonl", "conll")
_CHUNK = 2_000
"""Number of lines that are sorted by length and predicted together."""

logger = logging.getLogger(__name__)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    path_flag(
        values,
        "input",
        "file to read instead of stdin: lines of text, or FILE.tsv, FILE.jsonl, FILE.conll, FILE.conllu or FILE.json "
        "as in training, with or without labels",
    )
    text(values, "column", "of --input: column or key of the text; A,B for two texts; default: that of the config")
    text(values, "text", "the only line of the input, instead of stdin")
    path_flag(values, "image", "the only image file of the input, instead of stdin")
    text(values, "output", "text | jsonl | conll: output format", "text")
    switch(values, "probabilities", "also write the probabilities of all labels")
    path_flag(values, "output_file", "file to write instead of stdout; appears once it is complete")
    switch(values, "force", "replace the output file if it exists")


def run(arguments: Arguments) -> int:
    checkpoint, values = Path(arguments.required("checkpoint")), arguments.flags
    if values.output not in _FORMATS:
        hint = nearest(values.output, _FORMATS) or "; to write a file, use --output_file"
        raise ConfigError(f"--output={values.output}: expected one of {', '.join(_FORMATS)}{hint}")
    columns = None if values.column is None else comma_separated("column", values.column)
    if columns is not None and (values.input is None or format_of(values.input) is None):
        raise ConfigError(
            f"--column={values.column}: needs --input=FILE.tsv, FILE.jsonl, FILE.conll or FILE.conllu; lines of text "
            "have no columns"
        )
    with contextlib.ExitStack() as files:
        # All files are opened before the model is loaded, so that a wrong name is reported at once.
        source, name = open_input(values, ["text", "image"], files)
        output = open_output(values, files)

        say(f"reading checkpoint {checkpoint}")  # the imports that follow take seconds
        from transformer_jax.evaluation.loading import load_predictor
        from transformer_jax.host.compilation_cache import use_compilation_cache

        use_compilation_cache()
        predictor = load_predictor(checkpoint, arguments.overrides)
        of_images = predictor.config.model.inputs == "patches"
        reads, right, wrong = ("images", "image", "text") if of_images else ("text", "text", "image")
        if values[wrong].value is not None:
            raise ConfigError(f"--{wrong}: task.name='{predictor.config.task.name}' reads {reads}; use --{right}")
        writer = _writer(predictor, values.output, values.probabilities)
        file = None if values.input is None else _input_file(writer, values.input, columns)
        output.begin(lambda: _made_with(predictor, file, values), {"failed": COUNT})
        done, failed = output.lines, output.notes.get("failed", 0)
        total = num_lines(values.input) if file is None else file.num_examples()
        if file is None:
            inputs = _lines(writer, output.remaining(source), done)
        else:
            inputs = output.remaining(file.inputs(), _content)
        numbered = enumerate(inputs, done + 1)
        tabs = _Tabs(predictor, name)
        say(f"predicting {name}; programs are compiled for the first batches")
        with doing(f"predicting {name}"), progress_bar("predicting", total, done) as advance:
            while chunk := list(itertools.islice(numbered, _CHUNK)):
                tabs.see(chunk)
                written, problems = writer.lines([number for number, _ in chunk], [example for _, example in chunk])
                for place, problem in problems:
                    logger.warning("%s, %s: %s", name, place, problem)
                failed += len(problems)
                output.write(written, {"failed": failed})
                advance(len(chunk))
        output.finish()
    if file is not None:
        _print_scores(predictor, file, checkpoint, columns)
    if failed:
        logger.warning("lines without a prediction, which are empty: %d", failed)
    return exit_codes.SOME_FAILED if failed else exit_codes.OK


def _input_file(writer: _Writer, path: str, columns: Sequence[str] | None) -> InputFile | None:
    """Return an input file in a format of training; None for lines of text, which other suffixes have."""
    format = format_of(path)
    if format is None or writer.formats is None or (format in writer.as_lines and columns is None):
        return None
    file = input_file(writer.predictor.config.data, path, writer.formats, columns)
    if path.endswith(".gz") or columns is not None:
        return file
    if format == "squad" and has_lines_of_questions(file):
        return None
    if format == "tsv" and file.config.second_feature and has_pairs_of_texts(file):
        say(
            f"{path}: has two columns without the config's names; each line, also the first, is read as two texts. "
            "To choose columns, pass --column=A,B"
        )
        return None
    return file


def _lines(writer: _Writer, lines: Iterable[bytes], done: int) -> Iterator[Input]:
    """Yield the examples in lines of text. done: number of lines before these."""
    for number, line in enumerate(decoded_lines(lines, None, done), done + 1):
        value, problem = None, line.problem
        if not problem:
            try:
                value = writer.example(line.text)
            except ValueError as error:
                problem = str(error)
        yield Input(f"line {number}", value, problem)


def _made_with(predictor: Predictor[Any], file: InputFile | None, values: flags.FlagValues) -> dict[str, object]:
    """Return everything except the input that determines the predictions."""
    from transformer_jax.evaluation.fingerprint import fingerprint

    of_images = predictor.config.model.inputs == "patches"
    return {
        "checkpoint": fingerprint(predictor.tokenizer, (predictor.config.model, predictor.params)),
        "labels": [*predictor.labels],
        "evaluation": dataclasses.asdict(predictor.config.evaluation),
        "output": values.output,
        "probabilities": values.probabilities,
        **({"resize": predictor.config.data.resize} if of_images else {}),
        **({} if file is None else {"format": file.key}),
    }


def _content(example: Input) -> bytes:
    """Return the bytes of an example of a file, for the digest of those that are done."""
    return f"{json_text([*example])}\n".encode()


def _print_scores(predictor: Predictor[Any], file: InputFile, checkpoint: Path, columns: Sequence[str] | None) -> None:
    """Print the scores of a file with labels on stderr; or the reason why there are none."""
    from transformer_jax.evaluation.file_scores import scores_of_file
    from transformer_jax.evaluation.table import print_table, print_types

    name = os.path.basename(file.path).partition(".")[0]
    command = f"transformer-jax evaluate --checkpoint={quote(str(checkpoint))} --input={quote(str(file.path))}"
    if columns is not None:  # `evaluate` has no flag for the words of sentences, or for a second text
        has_flag = file.config.format in ("tsv", "jsonl") and len(columns) == 1
        command = f"{command} --columns={quote(columns[0])},LABEL" if has_flag else ""
    try:
        with doing(f"scoring {file.path}"):
            results = {name: scores_of_file(predictor, file.config, file.path, name)}
    except (DataError, CheckpointError) as error:
        hint = f"; to name the column of the labels, use {command}" if columns is not None and command else ""
        say(f"no scores: {error}{hint}")
        return
    print_table(results, predictor.task.metrics, say)
    print_types(results, say)
    if command:
        say(f"to keep these scores in a file: {command}")


class _Tabs:
    """Warns of the first text with a tab, which may be a pair of texts, for a classifier that reads one text."""

    def __init__(self, predictor: Predictor[Any], name: str) -> None:
        from transformer_jax.tasks.trained.predictor import Classifier

        self._name = name
        self._watches = isinstance(predictor, Classifier) and not predictor.config.data.second_feature

    def see(self, numbered: Sequence[tuple[int, Input]]) -> None:
        texts = ((x.place, x.value) for _, x in numbered if isinstance(x.value, str)) if self._watches else ()
        place = next((place for place, value in texts if "\t" in value), None)
        if place is not None:
            logger.warning("%s, %s: has a tab; %s", self._name, place, ONE_TEXT)
            self._watches = False


@dataclasses.dataclass(frozen=True)
class _Writer:
    """How a task's lines are read and its predictions are written."""

    predictor: Predictor[Any]
    output: str
    probabilities: bool

    formats: ClassVar[tuple[str, ...] | None] = None
    """Formats of training that --input can have; None: every file has lines of text."""
    as_lines: ClassVar[tuple[str, ...]] = ()
    """Formats whose suffix a file of lines of text can have."""

    def lines(self, numbers: Sequence[int], examples: Sequence[Input]) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the output line of every example, and the place and the problem of each that has no prediction."""
        from transformer_jax.tasks.trained.predictor import Problem

        found: list[Any] = [Problem(example.problem or "") for example in examples]
        values = {index: example.value for index, example in enumerate(examples) if not example.problem}
        for index, prediction in zip(values, self.predictor.attempt([*values.values()]), strict=True):
            found[index] = prediction
        written, problems = [], []
        for number, example, prediction in zip(numbers, examples, found, strict=True):
            if not is_finite(prediction):  # of a task from outside
                prediction = Problem(NOT_FINITE)
            problem = isinstance(prediction, Problem)
            if problem:
                problems.append((example.place, prediction.text))
            if self.output == "text":
                written.append("" if problem else on_one_line(self.text(prediction)))
            elif self.output == "conll":
                written.append("" if problem else self.conll(prediction))
            else:
                of_example = {"line": number} | ({"id": example.id} if example.id else {})
                written.append(
                    json_text(of_example | ({"problem": prediction.text} if problem else self.json(prediction)))
                )
        return written, problems

    def example(self, line: str) -> Any:
        """Return a line as the predictor takes it; raise ValueError with its problem."""
        return line

    def text(self, prediction: Any) -> str:
        raise NotImplementedError

    def json(self, prediction: Any) -> dict[str, Any]:
        raise NotImplementedError

    def conll(self, prediction: Any) -> str:
        raise NotImplementedError


class _LabelWriter(_Writer):
    formats = ("tsv", "jsonl")

    def example(self, line: str) -> Any:
        return tuple(line.split("\t")) if self.predictor.config.data.second_feature else line

    def text(self, prediction: Any) -> str:
        others = [f"{name}={p:.6f}" for name, p in prediction.probabilities.items()] if self.probabilities else []
        return "\t".join([prediction.label, f"{prediction.probability:.6f}", *others])

    def json(self, prediction: Any) -> dict[str, Any]:
        values = prediction._asdict()
        return values if self.probabilities else {name: values[name] for name in ("label", "probability")}


class _ImageWriter(_LabelWriter):
    formats = None


class _TagsWriter(_Writer):
    formats = ("conll", "conllu")
    as_lines = ("tsv",)

    def text(self, prediction: Any) -> str:
        return " ".join(prediction.tags)

    def json(self, prediction: Any) -> dict[str, Any]:
        values = prediction._asdict()
        return values if self.probabilities else {name: values[name] for name in ("words", "tags")}

    def conll(self, prediction: Any) -> str:
        return "".join(f"{word}\t{tag}\n" for word, tag in zip(prediction.words, prediction.tags, strict=True))


class _AnswerWriter(_Writer):
    formats = ("squad",)
    as_lines = ("jsonl",)

    def example(self, line: str) -> Any:
        if not line.strip():
            raise ValueError("has no question")
        try:
            asked = parse_json(line)
        except ValueError as error:
            raise ValueError(f"expected a JSON object with 'question' and 'context': {error}") from error
        if not isinstance(asked, dict) or not {"question", "context"} <= asked.keys():
            raise ValueError("expected a JSON object with 'question' and 'context'")
        pair = asked["question"], asked["context"]
        if not all(isinstance(side, str) for side in pair):
            raise ValueError("'question' and 'context' must be texts")
        return pair

    def text(self, prediction: Any) -> str:
        return prediction.text

    def json(self, prediction: Any) -> dict[str, Any]:
        text, start, end, score = prediction
        return {"answer": text, "score": score, "start": start, "end": end}


class _JsonWriter(_Writer):
    """The predictions of a task from outside of the package: named tuples."""

    def text(self, prediction: Any) -> str:
        return json_text(prediction._asdict())

    def json(self, prediction: Any) -> dict[str, Any]:
        return prediction._asdict()


def _writer(predictor: Predictor[Any], output: str, probabilities: bool) -> _Writer:
    """Return the writer of a task's predictions; raise ConfigError if it has no probabilities in this format."""
    from transformer_jax.tasks.trained.predictor import Answerer, Classifier, ImageClassifier, Tagger

    if output == "conll" and not isinstance(predictor, Tagger):
        raise ConfigError("--output=conll: only for models that tag words; use --output=text or jsonl")
    if probabilities and isinstance(predictor, Answerer):
        raise ConfigError("--probabilities: not available for question answering, whose answers have only scores")
    if probabilities and isinstance(predictor, Tagger) and output != "jsonl":
        raise ConfigError(f"--probabilities: --output={output} writes tags without probabilities; use --output=jsonl")
    for cls, writer in (
        (ImageClassifier, _ImageWriter),
        (Classifier, _LabelWriter),
        (Tagger, _TagsWriter),
        (Answerer, _AnswerWriter),
    ):
        if isinstance(predictor, cls):
            return writer(predictor, output, probabilities)
    return _JsonWriter(predictor, output, probabilities)
