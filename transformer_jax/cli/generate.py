"""Translate lines of text, or continue them with a language model, from stdin to stdout, in order.

    transformer-jax generate --checkpoint=runs/first < in.txt > out.txt
    transformer-jax generate --checkpoint=runs/first --decode.beam_size=5 --input=in.txt --output_file=out.txt
    transformer-jax generate --checkpoint=runs/language_model --text="Friday, March" --decode.max_new_tokens=20

Text is always UTF-8, whatever the locale. Line n of the output translates line n of the input; an empty line stays
empty. If a line cannot be translated, because it is too long for the model or not valid UTF-8, its output line is
empty, stderr names it, the other lines are translated, and the exit code is 3. A translation that reaches the length
limit (--decode.max_extra_length) is cut off there; a warning gives the number of such lines.

With --prompts=FILE, line n of FILE begins the translation of line n. If it is empty, the model begins the translation
itself.

With a language model, line n of the output is line n of the input and its continuation, of at most
--decode.max_new_tokens tokens. The output of an empty line is a text without a given beginning. Line feeds in an output
become spaces; with --output=jsonl they are kept.

If the corpus consists of Moses tokens (data.text_form=moses_bpe), input lines and prompts must have that form too; the
output is ordinary text.

With --output=jsonl, line n is an object with `line`, the line number, and `outputs`: the --decode.num_best best of a
beam search, best first, or --decode.num_samples samples. Each output has `text`, `ids`, `log_probs` of every token
(natural logarithms), `score` and `finished`. If there are no outputs, `problem` says why.

--output_file appears once it is complete. Until then the lines are in FILE.partial: after an interruption, the same
command continues from there, if checkpoint, settings and input are the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, comma_separated, path_flag, switch, text
from transformer_jax.cli.input_lines import decoded_lines, num_lines, open_input, open_lines
from transformer_jax.cli.resumable import open_output
from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, nearest
from transformer_jax.data.text_form import readable
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text, sha256_of
from transformer_jax.host.progress_bars import progress_bar
from transformer_jax.readers.records import COUNT, list_of
from transformer_jax.tasks.trained.lines import LineOutputs, on_one_line

if TYPE_CHECKING:
    from transformer_jax.tasks.trained.text_generator import TextGenerator

OVERRIDES = ("evaluation", "decode")

_FORMATS = ("text", "jsonl")
_NAMED_LINES = 5  # most line numbers that a warning lists

logger = logging.getLogger(__name__)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    text(values, "ensemble", "more checkpoints, separated by commas; the log probabilities of all are averaged")
    path_flag(values, "input", "file to read instead of stdin")
    text(values, "text", "the only line of the input, instead of stdin")
    path_flag(values, "prompts", "file whose line n is the beginning of the translation of line n; it may be empty")
    text(values, "output", "text | jsonl: output format", "text")
    path_flag(values, "output_file", "file to write instead of stdout; appears once it is complete")
    switch(values, "force", "replace the output file if it exists")


def run(arguments: Arguments) -> int:
    checkpoint, values = Path(arguments.required("checkpoint")), arguments.flags
    if values.output not in _FORMATS:
        hint = nearest(values.output, _FORMATS) or "; to write a file, use --output_file"
        raise ConfigError(f"--output={values.output}: expected one of {', '.join(_FORMATS)}{hint}")
    with contextlib.ExitStack() as files:
        # All files are opened before the model is loaded, so that a wrong name is reported at once.
        source, name = open_input(values, ["text"], files)
        prompts = open_lines("prompts", values.prompts, files)[0] if values.prompts else None
        output = open_output(values, files)

        from transformer_jax.evaluation.loading import load_generator
        from transformer_jax.host.compilation_cache import use_compilation_cache

        use_compilation_cache()
        names = comma_separated("ensemble", values.ensemble) if values.ensemble is not None else []
        ensemble = [Path(os.path.expanduser(name)) for name in names]
        generator = load_generator(checkpoint, arguments.overrides, ensemble)
        generator.check_limit()
        if values.output == "text" and generator.config.decode.num_outputs > 1:
            raise ConfigError(
                "--output=text writes one output per input line, but the decode settings ask for "
                f"{generator.config.decode.num_outputs}; use --output=jsonl to write all"
            )
        output.begin(lambda: _made_with(generator, values), _NOTES)
        done, notes = output.lines, _LineNotes(name, output.notes)
        with progress_bar("generating", num_lines(values.input), done) as advance:
            for chunk in generator.generate(decoded_lines(output.remaining(source), prompts, done), done + 1):
                notes.add(chunk)
                written = [_written(translation, values.output, generator.config.data) for translation in chunk]
                output.write(written, notes.values)
                advance(len(chunk))
        if prompts is not None and next(iter(prompts), None) is not None:
            raise DataError("--prompts: has more lines than the input; give one prompt per input line")
        output.finish()
    return notes.exit_code(generator.config)


def _written(translation: LineOutputs, output_form: str, data: DataConfig) -> str:
    if output_form == "text":
        return on_one_line(readable(translation.text, data))
    outputs = [output._asdict() | {"text": readable(output.text, data)} for output in translation.outputs]
    result = {"line": translation.number, "outputs": outputs}
    if translation.problem:
        result["problem"] = translation.problem
    return json_text(result)


def _made_with(generator: TextGenerator, values: flags.FlagValues) -> dict[str, object]:
    """Return everything except the input that determines the translations."""
    from transformer_jax.evaluation.fingerprint import fingerprint

    return {
        "checkpoint": fingerprint(generator.tokenizer, *generator.members),
        "decode": dataclasses.asdict(generator.config.decode.resolved()),
        "evaluation": dataclasses.asdict(generator.config.evaluation),
        "output": values.output,
        "prompts": values.prompts and sha256_of(values.prompts),
    }


_NOTES = {"failed": COUNT, "unfinished": COUNT, "first_unfinished": list_of(COUNT)}


class _LineNotes:
    """Counts of failed and of unfinished lines, for warnings; `values` is saved for the command that continues."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self._name = name
        self.values: dict[str, Any] = {"failed": 0, "unfinished": 0, "first_unfinished": [], **values}

    def add(self, translations: Iterable[LineOutputs]) -> None:
        for translation in translations:
            if translation.problem:
                self.values["failed"] += 1
                logger.warning("%s, line %d: %s", self._name, translation.number, translation.problem)
            elif translation.unfinished:
                self.values["unfinished"] += 1
                if len(self.values["first_unfinished"]) < _NAMED_LINES:
                    self.values["first_unfinished"].append(translation.number)

    def exit_code(self, config: ExperimentConfig) -> int:
        if self.values["unfinished"]:
            first, decode = self.values["first_unfinished"], config.decode
            limit = f"max_new_tokens={decode.max_new_tokens}"
            if decode.max_new_tokens is None:
                limit = f"max_extra_length={decode.max_extra_length} tokens more than the source"
            if config.task.name == "language_model" and decode.max_new_tokens is None:
                limit = f"max_extra_length={decode.max_extra_length}"
            of_model = f" and model.max_length={config.model.max_length}" if _is_bounded(config.model) else ""
            logger.warning(
                "outputs cut off at the length limit: %d (line %s); the limit is decode.%s%s",
                self.values["unfinished"],
                ", ".join(map(str, first)) + (", ..." if self.values["unfinished"] > len(first) else ""),
                limit,
                of_model,
            )
        if self.values["failed"]:
            logger.warning("lines without an output, which are empty: %d", self.values["failed"])
        return exit_codes.SOME_FAILED if self.values["failed"] else exit_codes.OK


def _is_bounded(model: ModelConfig) -> bool:
    """Return whether an output has at most `max_length` tokens, whatever `decode` says."""
    return model.architecture == "encoder_decoder" or model.has_position_table
