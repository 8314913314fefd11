"""Predict a label, tags or an answer for every line, from stdin to stdout, in order.

    transformer-jax predict --checkpoint=runs/sst2 < in.txt > out.tsv
    transformer-jax predict --checkpoint=runs/sst2 --text="a charming journey" --probabilities
    transformer-jax predict --checkpoint=runs/squad --input=questions.jsonl --output=jsonl --output_file=answers.jsonl
    transformer-jax predict --checkpoint=runs/images --image=picture.png --probabilities

| task             | a line of the input                                | a line of the output                        |
|------------------|----------------------------------------------------|---------------------------------------------|
| `classification` | a text; two texts with a tab between them if the   | the label, a tab and its probability        |
|                  | model was trained on pairs                         |                                             |
| `tagging`        | words with spaces between them                     | one tag per word, with spaces between them  |
| `span_qa`        | a JSON object with `question` and `context`        | the answer                                  |
| `images`         | the path of a PNG or JPEG file                     | the label, a tab and its probability        |

With --output=jsonl, line n is an object with `line`, the line number, and `label` and `probability`; or `words` and
`tags`; or `answer`, its `score`, and the characters `start` to `end` (exclusive) of the context. --probabilities adds
those of all labels: in text after the label, as NAME=P with tabs between them; in JSON as `probabilities`.

An image is converted to the channels of the model, and scaled if the model's corpus was; --data.resize=crop or squash
scales it for any model.

Text is always UTF-8, whatever the locale. If a line has no prediction, because it is empty, too long for the model, not
valid UTF-8 or of another form, because its image cannot be read or has another size, or because the model's outputs are
not finite numbers, its output line is empty (in JSON it has `problem`), stderr names it, the other lines are predicted,
and the exit code is 3.

Words of a sentence stand between spaces or tabs; a no-break space is part of a word, as in training.

--output_file appears once it is complete. Until then the lines are in FILE.partial: after an interruption, the same
command continues from there, if checkpoint, settings and input are the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from transformer_jax import exit_codes
from transformer_jax.cli.arguments import Arguments, checkpoint_flag, path_flag, switch, text
from transformer_jax.cli.generate import num_lines, open_input, read_lines
from transformer_jax.cli.resumable import ResumableFile
from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError
from transformer_jax.files import is_finite, json_text
from transformer_jax.progress import progress_bar
from transformer_jax.readers import parse_json
from transformer_jax.readers.records import COUNT
from transformer_jax.tasks.lines import NOT_FINITE, ONE_TEXT, Line, on_one_line

if TYPE_CHECKING:
    from transformer_jax.tasks.predictor import Predictor

OVERRIDES = ("evaluation", "data.resize")

_FORMATS = ("text", "jsonl")
_CHUNK = 2_000
"""Number of lines that are sorted by length and predicted together."""

logger = logging.getLogger(__name__)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    path_flag(values, "input", "file to read instead of stdin")
    text(values, "text", "the only line of the input, instead of stdin")
    path_flag(values, "image", "the only image file of the input, instead of stdin")
    text(values, "output", "text | jsonl: output format", "text")
    switch(values, "probabilities", "also write the probabilities of all labels")
    path_flag(values, "output_file", "file to write instead of stdout; appears once it is complete")
    switch(values, "force", "replace the output file if it exists")


def run(arguments: Arguments) -> int:
    checkpoint, values = Path(arguments.required("checkpoint")), arguments.flags
    if values.output not in _FORMATS:
        hint = nearest(values.output, _FORMATS) or "; to write a file, use --output_file"
        raise ConfigError(f"--output={values.output}: expected one of {', '.join(_FORMATS)}{hint}")
    with contextlib.ExitStack() as files:
        # All files are opened before the model is loaded, so that a wrong name is reported at once.
        given = [name for name in ("text", "image", "input") if values[name].value is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(f'--{name}' for name in given)}: give one of them")
        source, name = open_input("input", values.input, files)
        if values.text is not None:
            source, name = [values.text.encode(errors="surrogatepass")], "--text"
        if values.image is not None:
            source, name = [values.image.encode(errors="surrogatepass")], "--image"
        file = None
        if values.output_file:
            file = ResumableFile(Path(values.output_file), f"--output_file={values.output_file}", values.force)
            files.callback(file.close)

        from transformer_jax.compilation_cache import use_compilation_cache
        from transformer_jax.evaluation.loading import fingerprint, load_predictor

        use_compilation_cache()
        predictor = load_predictor(checkpoint, arguments.overrides)
        reads, other = ("images", "image") if predictor.config.model.inputs == "patches" else ("text", "text")
        if given in (["text"], ["image"]) and given != [other]:
            raise ConfigError(f"--{given[0]}: task.name='{predictor.config.task.name}' reads {reads}; use --{other}")
        writer = _writer(predictor, values.output, values.probabilities)
        lines: Iterable[bytes] = source
        if file is not None:
            made_with = {
                "checkpoint": fingerprint(predictor.tokenizer, (predictor.config.model, predictor.params)),
                "labels": [*predictor.labels],
                "evaluation": dataclasses.asdict(predictor.config.evaluation),
                "output": values.output,
                "probabilities": values.probabilities,
                **({"resize": predictor.config.data.resize} if reads == "images" else {}),
            }
            file.begin(made_with, {"failed": COUNT})
            lines = file.remaining(source)
        done, failed = (0, 0) if file is None else (file.lines, file.notes.get("failed", 0))
        numbered = enumerate(read_lines(lines, None, done), done + 1)
        tabs = _Tabs(predictor, name)
        with progress_bar("predicting", num_lines(values.input), done) as advance:
            while chunk := list(itertools.islice(numbered, _CHUNK)):
                tabs.see(chunk)
                written, problems = writer.lines([number for number, _ in chunk], [line for _, line in chunk])
                for number, problem in problems:
                    logger.warning("%s, line %d: %s", name, number, problem)
                failed += len(problems)
                data = "".join(f"{line}\n" for line in written).encode()
                if file is None:
                    sys.stdout.buffer.write(data)
                    sys.stdout.buffer.flush()
                else:
                    file.write(data, len(chunk), {"failed": failed})
                advance(len(chunk))
        if file is not None:
            file.finish()
    if failed:
        logger.warning("lines without a prediction, which are empty: %d", failed)
    return exit_codes.SOME_FAILED if failed else exit_codes.OK


class _Tabs:
    """Warns of the first line with a tab, which may be a pair of texts, for a classifier that reads one text."""

    def __init__(self, predictor: Predictor[Any], name: str) -> None:
        from transformer_jax.tasks.predictor import Classifier

        self._name = name
        self._watches = isinstance(predictor, Classifier) and not predictor.config.data.second_feature

    def see(self, numbered: Sequence[tuple[int, Line]]) -> None:
        number = next((number for number, line in numbered if "\t" in line.text), None) if self._watches else None
        if number is not None:
            logger.warning("%s, line %d: has a tab; %s", self._name, number, ONE_TEXT)
            self._watches = False


@dataclasses.dataclass(frozen=True)
class _Writer:
    """How a task's lines are read and its predictions are written."""

    predictor: Predictor[Any]
    output: str
    probabilities: bool

    def lines(self, numbers: Sequence[int], lines: Sequence[Line]) -> tuple[list[str], list[tuple[int, str]]]:
        """Return the output line of every line, and the number and the problem of each that has no prediction."""
        from transformer_jax.tasks.predictor import Problem

        found: list[Any] = [Problem(line.problem or "") for line in lines]
        examples = {}
        for place, line in enumerate(lines):
            if line.problem:
                continue
            try:
                examples[place] = self.example(line.text)
            except ValueError as error:
                found[place] = Problem(str(error))
        for place, prediction in zip(examples, self.predictor.attempt([*examples.values()]), strict=True):
            found[place] = prediction
        written, problems = [], []
        for number, prediction in zip(numbers, found, strict=True):
            if not is_finite(prediction):  # of a task from outside
                prediction = Problem(NOT_FINITE)
            problem = isinstance(prediction, Problem)
            if problem:
                problems.append((number, prediction.text))
            if self.output == "text":
                written.append("" if problem else on_one_line(self.text(prediction)))
            else:
                values = {"problem": prediction.text} if problem else self.json(prediction)
                written.append(json_text({"line": number} | values))
        return written, problems

    def example(self, line: str) -> Any:
        """Return a line as the predictor takes it; raise ValueError with its problem."""
        return line

    def text(self, prediction: Any) -> str:
        raise NotImplementedError

    def json(self, prediction: Any) -> dict[str, Any]:
        raise NotImplementedError


class _LabelWriter(_Writer):
    def example(self, line: str) -> Any:
        return tuple(line.split("\t")) if self.predictor.config.data.second_feature else line

    def text(self, prediction: Any) -> str:
        others = [f"{name}={p:.6f}" for name, p in prediction.probabilities.items()] if self.probabilities else []
        return "\t".join([prediction.label, f"{prediction.probability:.6f}", *others])

    def json(self, prediction: Any) -> dict[str, Any]:
        values = prediction._asdict()
        return values if self.probabilities else {name: values[name] for name in ("label", "probability")}


class _TagsWriter(_Writer):
    def text(self, prediction: Any) -> str:
        return " ".join(prediction.tags)

    def json(self, prediction: Any) -> dict[str, Any]:
        values = prediction._asdict()
        return values if self.probabilities else {name: values[name] for name in ("words", "tags")}


class _AnswerWriter(_Writer):
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
    from transformer_jax.tasks.predictor import Answerer, Classifier, Tagger

    if probabilities and isinstance(predictor, Answerer):
        raise ConfigError("--probabilities: an answer has a score and no probability; leave the flag out")
    if probabilities and isinstance(predictor, Tagger) and output == "text":
        raise ConfigError("--probabilities: tags are written without them; use --output=jsonl")
    for cls, writer in ((Classifier, _LabelWriter), (Tagger, _TagsWriter), (Answerer, _AnswerWriter)):
        if isinstance(predictor, cls):
            return writer(predictor, output, probabilities)
    return _JsonWriter(predictor, output, probabilities)
