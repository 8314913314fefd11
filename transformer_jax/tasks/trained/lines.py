"""Lines of text to translate, and their translations."""

from __future__ import annotations

from typing import NamedTuple

ONE_TEXT = (
    "the model reads one text, with the tab in it: data.second_feature is empty in its config. For a classifier of "
    "pairs from a Hugging Face folder, convert it again with --config=CONFIG that sets data.second_feature"
)
"""The end of a warning of texts with a tab, which may be pairs."""


NOT_FINITE = "the model's output is not finite: its parameters are damaged, or its training has diverged"
"""The reason why there is no output, label, answer or score of an example."""


class Line(NamedTuple):
    """A text to translate.

    prompt: the beginning of its translation. problem: the reason why it cannot be translated; the line keeps its place.
    """

    text: str
    prompt: str | None = None
    problem: str | None = None


class Output(NamedTuple):
    """One output of a line.

    - text: in the corpus's own form, with the prompt if there was one.
    - ids: its tokens without the prompt, with end-of-sequence if it is finished.
    - log_probs: natural logarithms of the probabilities of the ids, after the repetition penalty if there is one.
    - score: the number that ranks the outputs of a line; see decoding/beam_search.py.
    """

    text: str
    ids: list[int]
    log_probs: list[float]
    score: float
    finished: bool


class LineOutputs(NamedTuple):
    """The translation of a line.

    outputs: best first for a search; empty for an empty line and for one with a problem. problem: the reason why the
    line was not translated.
    """

    number: int
    outputs: list[Output]
    problem: str | None = None

    @property
    def text(self) -> str:
        return self.outputs[0].text if self.outputs else ""

    @property
    def unfinished(self) -> bool:
        """Whether the best output was cut off at the length limit."""
        return bool(self.outputs) and not self.outputs[0].finished


def on_one_line(text: str) -> str:
    """Return the text with a space in place of every character that programs treat as the end of a line.

    With a tokenizer that falls back to bytes, a model can write any character. Line n of the output must still belong
    to line n of the input.
    """
    return " ".join(text.splitlines())
