"""Keys of config.json about rotary positions, in both directions, in the forms of versions 4 and 5 of transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer_jax.config import ModelConfig

_FORMS = ("rope_scaling", "rope_parameters")
"""Objects with the keys, the first of version 4. One that is there and not empty goes before the keys beside it."""
_FRACTION = "partial_rotary_factor"


class RotaryKeys(NamedTuple):
    """Which keys a family has for rotary positions, outside of `rope_parameters`.

    default: the base of a file without one. base: the key of the base. fraction: the key of the part of a head that is
    rotated, whose field is in the table of the family; None for a family that rotates whole heads.
    """

    default: float = 10_000.0
    base: str = "rope_theta"
    fraction: str | None = None

    def read(self, values: dict[str, Any], ignored: dict[str, str]) -> list[str]:
        """Replace the objects by the keys beside them; return what is wrong with them.

        As in transformers 5.23, `rope_scaling` comes before `rope_parameters`, and what they hold before the keys
        beside them.

        Args:
          ignored: gets the keys of the objects that are not used, with the reason.
        """
        forms = {name: values.pop(name, None) for name in _FORMS}
        base, named, problems = values.get(self.base, self.default), self.base, []
        for name, given in forms.items():
            if given is not None and not isinstance(given, Mapping):
                problems.append(f"{name}={given!r}: expected an object")
        used = next((name for name, given in forms.items() if given), None)
        if used is not None and not problems:
            given = dict(forms[used] or {})
            kind = given.pop("rope_type", given.pop("type", "default"))
            if "rope_theta" in given:
                base, named = given.pop("rope_theta"), f"{used}.rope_theta"
            if self.fraction is not None and _FRACTION in given:
                values[self.fraction] = given.pop(_FRACTION)
            is_plain = kind == "default" or (kind == "linear" and given == {"factor": 1.0})
            if not is_plain or any(isinstance(value, Mapping) for value in given.values()):
                problems.append(f"{used} with rope_type={kind!r}: transformer_jax cannot scale rotary positions")
            ignored |= {f"{used}.{name}": "of rotary positions that are scaled" for name in given}
        if base is None:
            base = self.default
        if type(base) not in (int, float) or base <= 0:
            problems.append(f"{named}={base!r}: expected a number above 0")
        values[self.base] = base
        return problems

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Return the keys of a config, those of both versions."""
        parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rotary_base}
        beside: dict[str, Any] = {self.base: config.rotary_base}
        if self.fraction is not None:
            parameters[_FRACTION] = beside[self.fraction] = _written_fraction(config)
        return {"rope_parameters": parameters, **beside}


def _written_fraction(config: ModelConfig) -> float:
    """Return the part of a head that is rotated, as a number f with which int(head_dim * f) is exactly `rotary_dim`."""
    exact = config.rotary_dim / config.head_dim
    return exact if int(config.head_dim * exact) == config.rotary_dim else math.nextafter(exact, 1.0)
