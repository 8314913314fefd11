"""The axes of a parameter: those of the inputs of a map, and those of its outputs.

Each block has a table `PARAMETER_AXES`: its keys are regular expressions for the end of a parameter's path, and match
whole parts of it. Sharding (parallel/rules.py), the matrices of Muon (training/muon.py) and the initial values that
depend on the depth (nn/residual.py) follow from the tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

NAMES = frozenset({"emb", "heads", "mlp", "vocab"})
"""Names that an axis can have."""
WIDTHS = frozenset({"emb", "heads", "mlp"})
"""Names of axes that grow with the width of a model; `vocab`, and an axis without a name, do not."""


class Axes(NamedTuple):
    """Logical names of an array's last axes, `inputs + maps + outputs`; None for an axis that is never sharded.

    The array is a map from the inputs to the outputs. A vector has outputs only. `maps` number separate maps from the
    same inputs, such as the gates of a recurrent cell. Axes in front that no name stands for number separate maps too:
    the layers of a stack, and experts.

    scaled: whether a place of norms with a factor of initial values (`residual.Scales.kernels`) multiplies those of
    this array.
    """

    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    maps: tuple[str | None, ...] = ()
    scaled: bool = False

    @property
    def names(self) -> tuple[str | None, ...]:
        """The names in the order of the array's axes."""
        return self.inputs + self.maps + self.outputs

    @property
    def is_hidden(self) -> bool:
        """Whether inputs and outputs both grow with the width of the model, as those of hidden matrices do.

        Tables of embeddings, output projections, routers, convolutions and vectors are not hidden matrices.
        """
        return not WIDTHS.isdisjoint(self.inputs) and not WIDTHS.isdisjoint(self.outputs)


ParameterAxes = Mapping[str, Axes]
"""Axes of parameters by the end of their paths."""

_HEAD = re.compile(r"(^|/)head/")


def axes_of(path: str, table: ParameterAxes) -> Axes | None:
    """Return the axes of the parameter at a path, or at the end of one; None for a parameter of a task's `head`.

    Raises: ValueError if no entry of the table, or more than one, matches the path, or if the entry is not an `Axes` of
      known names.
    """
    if _HEAD.search(path):
        return None
    matching = [(end, axes) for end, axes in table.items() if re.search(rf"(^|/){end}$", path)]
    if len(matching) != 1:
        found = (
            f"{len(matching)} entries match: {', '.join(end for end, _ in matching)}" if matching else "none matches"
        )
        raise ValueError(
            f"{path}: expected one entry for the end of this path in the axes of the block that has it, and {found}; "
            "for example '(gate|up)/kernel': Axes(('emb',), ('mlp',))"
        )
    [(end, axes)] = matching
    if not isinstance(axes, Axes) or not NAMES.issuperset(name for name in axes.names if name is not None):
        names = ", ".join(sorted(NAMES))
        raise ValueError(f"{path}: the axes of '{end}' are {axes!r}; expected Axes(inputs, outputs) of {names} or None")
    return axes
