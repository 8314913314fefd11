"""Print the log probability of every line of text under a language model.

    transformer-jax score --checkpoint=runs/language_model < texts.txt
    transformer-jax score --checkpoint=runs/language_model --input=texts.txt --output=jsonl

Line n of the output belongs to line n of the input: its natural log probability and its number of tokens, with a tab
between. Both include the end of the text, unless --without_end is given. A line above --evaluation.max_length tokens is
scored in windows, as in `evaluate`. With --output=jsonl, line n is an object with `line`, `log_prob`, `tokens` and
`perplexity` (per token).

Text is UTF-8. If a line is not valid UTF-8, or its probability is not a finite number, its output line is empty, stderr
names it, and the exit code is 3.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from pathlib import Path

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, choice_flag, path_flag, switch, text
from transformer_jax.cli.input_lines import decoded_lines, open_input
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text
from transformer_jax.tasks.trained.lines import NOT_FINITE

OVERRIDES = ("evaluation",)

_CHUNK = 2_000  # lines that are scored together
logger = logging.getLogger(__name__)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    path_flag(values, "input", "file to read instead of stdin")
    text(values, "text", "the only line of the input, instead of stdin")
    choice_flag(values, "output", "output format", "text", ("text", "jsonl"))
    switch(values, "without_end", "leave out the end of the text")


def run(arguments: Arguments) -> int:
    checkpoint, values = Path(arguments.required("checkpoint")), arguments.flags
    with contextlib.ExitStack() as files:
        source, name = open_input(values, ["text"], files)

        from transformer_jax.evaluation.loading import load_language_model
        from transformer_jax.host.compilation_cache import use_compilation_cache

        use_compilation_cache()
        model, failed = load_language_model(checkpoint, arguments.overrides), 0
        numbered = enumerate(decoded_lines(source, None), start=1)
        while chunk := list(itertools.islice(numbered, _CHUNK)):
            scores = model.score([line.text for _, line in chunk], end=not values.without_end)
            for (number, line), log_prob, tokens in zip(chunk, *scores, strict=True):
                problem = line.problem or (None if math.isfinite(log_prob) else NOT_FINITE)
                if problem:
                    logger.warning("%s, line %d: %s", name, number, problem)
                    failed += 1
                print(_written(number, problem, float(log_prob), int(tokens), values.output))
    return exit_codes.SOME_FAILED if failed else exit_codes.OK


def _written(number: int, problem: str | None, log_prob: float, tokens: int, form: str) -> str:
    if form == "text":
        return "" if problem else f"{log_prob + 0.0:.6f}\t{tokens}"
    if problem:
        return json_text({"line": number, "problem": problem}, ascii=True)
    perplexity = math.exp(min(-log_prob / tokens, 700.0)) if tokens else None
    return json_text({"line": number, "log_prob": log_prob, "tokens": tokens, "perplexity": perplexity})
