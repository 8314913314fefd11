"""Keys of config.json about single layers, beside `layer_pattern` and `layer_kinds`, in both directions.

Of layers that differ, Hugging Face has lists with one entry for each layer, and older keys with which transformers
makes such a list. A list that is there goes before the older keys. Here a pattern of letters says the same.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformer_jax.config import ModelConfig
from transformer_jax.config.layers import layer_configs, per_layer_fields

_FULL, _SLIDING = "full_attention", "sliding_attention"
_OF_LAYERS = ("attention_window", "attention_rotates")
FIELDS = ("layer_pattern", "layer_kinds", *_OF_LAYERS)
"""Our fields that the keys express."""


class LayerLists(NamedTuple):
    """Which keys of layers a family has beside `use_sliding_window`, `sliding_window` and `layer_types`.

    sliding_window: its default. max_window_layers: the default of the number of layers before the first with a window;
    None for a family in which the layers without rotary positions have the window. no_rope_layer_interval: the default
    of the number of layers from one without rotary positions to the next; None for a family that rotates in all layers.
    """

    sliding_window: int | None
    max_window_layers: int | None = None
    no_rope_layer_interval: int | None = None

    @property
    def keys(self) -> frozenset[str]:
        """The keys of config.json."""
        of_windows = {"use_sliding_window", "sliding_window", "layer_types"}
        if self.no_rope_layer_interval is not None:
            return frozenset({*of_windows, "no_rope_layers", "no_rope_layer_interval"})
        return frozenset({*of_windows, "max_window_layers"})

    def read(self, values: dict[str, Any], num_layers: int) -> dict[str, Any]:
        """Take the keys out of those of a file; return the values of `FIELDS` that are not defaults.

        Raises: ValueError, whose text names the key that is wrong, or that our blocks cannot express.
        """
        given = {name: values.pop(name) for name in self.keys if name in values}
        used = _checked(given, "use_sliding_window", False, "true or false")
        window = _checked(given, "sliding_window", self.sliding_window, "an integer above 0, or null")
        rotates, window = self._rotates(given, num_layers), window if used else None
        types = given.get("layer_types")
        if types is not None:
            has_window = _typed(types, num_layers)
            if any(has_window) and window is None:
                raise ValueError(
                    f"layer_types has {_SLIDING!r}, but use_sliding_window={used} and "
                    f"sliding_window={given.get('sliding_window')!r} give no window"
                )
        elif self.no_rope_layer_interval is not None:
            has_window = [not rotated for rotated in rotates]
        else:
            first = _checked(given, "max_window_layers", self.max_window_layers, "an integer", least=0)
            has_window = [layer >= first for layer in range(num_layers)]
        return _fields(
            [(window if windowed else None, rotated) for windowed, rotated in zip(has_window, rotates, strict=True)]
        )

    def _rotates(self, given: dict[str, Any], num_layers: int) -> list[bool]:
        """Return for every layer whether it has rotary positions. In the list of theirs, 1 means that it has."""
        if self.no_rope_layer_interval is None:
            return [True] * num_layers
        flags = given.get("no_rope_layers")
        if flags is None:
            interval = _checked(given, "no_rope_layer_interval", self.no_rope_layer_interval, "an integer above 0")
            return [(layer + 1) % interval != 0 for layer in range(num_layers)]
        if not isinstance(flags, list) or len(flags) < num_layers or any(flag not in (0, 1) for flag in flags):
            raise ValueError(f"no_rope_layers={flags!r:.100}: expected 0 or 1 for each of {num_layers} layers")
        return [bool(flag) for flag in flags[:num_layers]]

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Return the keys that express a config without `problems`."""
        layers = layer_configs(config, "decoder", config.num_decoder_layers)
        has_window = [layer.attention_window is not None for layer in layers]
        window = next((layer.attention_window for layer in layers if layer.attention_window is not None), None)
        keys: dict[str, Any] = {"use_sliding_window": any(has_window), "sliding_window": window}
        keys["layer_types"] = [_SLIDING if windowed else _FULL for windowed in has_window]
        if self.no_rope_layer_interval is not None:
            keys["no_rope_layers"] = [int(layer.attention_rotates) for layer in layers]
        elif any(has_window) and has_window == sorted(has_window):  # for versions that do not read the list
            keys["max_window_layers"] = has_window.index(True)
        return keys

    def problems(self, config: ModelConfig, label: str) -> list[str]:
        """Return a line for everything about the layers of a config that the keys cannot express.

        Args:
          label: of the family.
        """
        layers, problems = layer_configs(config, "decoder", config.num_decoder_layers), []
        windows = sorted({layer.attention_window for layer in layers if layer.attention_window is not None})
        if len(windows) > 1:
            problems.append(f"model.attention_window is {' and '.join(map(str, windows))}: {label} has one window")
        if self.no_rope_layer_interval is None and not all(layer.attention_rotates for layer in layers):
            problems.append(f"model.attention_rotates=False: {label} has True in all layers")
        for name in per_layer_fields(type(config)):
            value = getattr(config, name)
            if name not in FIELDS and any(getattr(layer, name) != value for layer in layers):
                problems.append(f"model.layer_kinds={config.layer_kinds!r}: {label} has {name}={value!r} in all layers")
        return problems


def _checked(given: dict[str, Any], name: str, default: Any, expected: str, least: int = 1) -> Any:
    """Return the value of a key, which has the type of its default or, with a default of a number or null, either."""
    value = given.get(name, default)
    is_right = type(value) is bool if type(default) is bool else type(value) is int and value >= least
    if not is_right and not (value is None and "null" in expected):
        raise ValueError(f"{name}={value!r}: expected {expected}")
    return value


def _typed(types: Any, num_layers: int) -> list[bool]:
    """Return for every layer whether it has a window, by `layer_types`."""
    if not isinstance(types, list) or len(types) != num_layers:
        raise ValueError(f"layer_types={types!r:.100}: expected a list with a type for each of {num_layers} layers")
    unknown = sorted({repr(kind) for kind in types} - {repr(_FULL), repr(_SLIDING)})
    if unknown:
        raise ValueError(f"layer_types has {', '.join(unknown):.100}: transformer_jax has {_FULL!r} and {_SLIDING!r}")
    return [kind == _SLIDING for kind in types]


def _fields(layers: Sequence[tuple[int | None, bool]]) -> dict[str, Any]:
    """Return fields with which layers have these windows and rotations: of equal layers without a pattern."""
    kinds = list(dict.fromkeys(layers))
    values = dict(zip(_OF_LAYERS, zip(*kinds, strict=True), strict=False))  # empty if there are no layers
    fields: dict[str, Any] = {name: of_kinds[0] for name, of_kinds in values.items() if len({*of_kinds}) == 1}
    differing = [name for name in values if name not in fields]
    if not differing:
        return fields
    letters = "".join(string.ascii_uppercase[kinds.index(layer)] for layer in layers)
    period = next(n for n in range(1, len(letters) + 1) if letters[n:] == letters[: len(letters) - n])
    texts = (
        ", ".join(f"{name}={str(values[name][number]).lower()}" for name in differing) for number in range(len(kinds))
    )
    named = (f"{letter}: {text}" for letter, text in zip(string.ascii_uppercase, texts, strict=False))
    return fields | {"layer_pattern": letters[:period], "layer_kinds": "; ".join(named)}
