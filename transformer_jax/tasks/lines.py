"""Lines of text to translate, and their translations."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """A text to translate.

    prompt: the beginning of its translation. problem: why it cannot be translated; it keeps its place all the same.
    """

    text: str
    prompt: str | None = None
    problem: str | None = None


class Output(NamedTuple):
    """One output of a line.

    text: with the prompt, if there was one, in the corpus's own form. ids: its tokens without the prompt and, if it has
    ended, the end mark.
    log_probs: of each of the ids under the model, natural logarithms, with the repetition penalty if there is one.
    score: what outputs of a line are ranked by; decoding/beam_search.py.
    """

    text: str
    ids: list[int]
    log_probs: list[float]
    score: float
    finished: bool


class Translated(NamedTuple):
    """The translation of a line.

    outputs: of a search best first; empty for an empty line and for one with a problem. problem: why the line was not
    translated.
    """

    number: int
    outputs: list[Output]
    problem: str | None = None

    @property
    def text(self) -> str:
        return self.outputs[0].text if self.outputs else ""

    @property
    def unfinished(self) -> bool:
        """Whether the best output came to the length limit and ends there."""
        return bool(self.outputs) and not self.outputs[0].finished


def on_one_line(text: str) -> str:
    """Text with a space in place of whatever a program may take for the end of a line.

    A tokenizer that falls back to bytes lets a model write any character; line n of the output has to stay line n of
    the input all the same.
    """
    return " ".join(text.splitlines())
