"""The style of the figures of a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Of Okabe and Ito 2008, "Color universal design"."""
GREY = "#9298a3"
"""Visible on light and dark pages."""


@dataclasses.dataclass(frozen=True)
class Style:
    """Size, font, colours and words of figures.

    Attributes:
      width: in inches. On a page 360 pixels wide, 5.2 inches are scaled to two thirds.
      height: of the part with the data, in inches. Figures with rows or panels are as high as these need.
      font: name of a family; empty for matplotlib's own.
      font_size: in points.
      colours: of lines, as hexadecimal numbers.
      colour_map: of heat maps, a name of matplotlib.
      labels: words in place of a value, an axis, a metric or the tuned field, by its name. `axis=value` names a
        value of one axis, and its words take the place of both.
    """

    width: float = 5.2
    height: float = 3.2
    font: str = ""
    font_size: float = 10
    colours: tuple[str, ...] = COLOURS
    colour_map: str = "cividis"
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def axis(self, name: str) -> str:
        return self.labels.get(name, name)

    def value(self, axis: str, value: str) -> str:
        return self.labels.get(f"{axis}={value}", self.labels.get(value, value))

    def fits(self, characters: int) -> int:
        """Return how many characters have the room that so many have by default."""
        return max(8, round(characters * self.width / Style.width * Style.font_size / self.font_size))

    def words(self, labels: Mapping[str, str]) -> str:
        """Return `norm pre, depth 2`."""
        return ", ".join(
            self.value(axis, value)
            if f"{axis}={value}" in self.labels
            else f"{self.axis(axis)} {self.value(axis, value)}"
            for axis, value in labels.items()
        )
