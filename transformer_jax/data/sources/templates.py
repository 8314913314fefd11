"""Rewriting of inputs and labels, for any source: coarse labels, other names of labels, and a template of the inputs.

With `data.input_template`, a labelled corpus becomes one of texts to texts (Raffel et al. 2020, section 2.4): the input
"sst2 sentence: it 's a charming journey ." with the target "positive" is a translation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from transformer_jax.config import DataConfig
from transformer_jax.config.data import parse_label_names
from transformer_jax.data.sources.source import Source, Split
from transformer_jax.errors import DataError
from transformer_jax.host.files import json_sha256


def rewritten(source: Source, config: DataConfig) -> Source:
    """Return a source whose examples are rewritten as the config says; the same source if it says nothing."""
    if not (config.coarse_labels or config.label_names or config.input_template):
        return source
    return _RewrittenSource(source, config)


class _RewrittenSource:
    """A source whose splits are rewritten while they are read."""

    def __init__(self, source: Source, config: DataConfig) -> None:
        self._source, self._config = source, config
        self._names = parse_label_names(config.label_names)

    @property
    def split_names(self) -> tuple[str, ...]:
        return self._source.split_names

    def num_examples(self, name: str) -> int:
        return self._source.num_examples(name)

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        return map(self._rewritten(name), self._source.chunks(name, size))

    def split(self, name: str) -> Split:
        return self._rewritten(name)(self._source.split(name))

    def fingerprint(self, split: str | None = None) -> dict[str, Any]:
        """Return the fingerprint of the source, with another sha256."""
        of_source, config = self._source.fingerprint(split), self._config
        settings = [config.coarse_labels, config.label_names, config.input_template]
        return of_source | {"sha256": json_sha256({"source": of_source["sha256"], "rewriting": settings})}

    def _rewritten(self, name: str) -> Callable[[Split], Split]:
        return lambda split: Split(split.features | self._changed(split.features, name))

    def _changed(self, features: dict[str, list[Any]], split: str) -> dict[str, list[Any]]:
        changed: dict[str, list[Any]] = {}
        if (self._config.coarse_labels or self._names) and "tags" in features:
            changed["tags"] = [[self._label(tag, split) for tag in tags] for tags in features["tags"]]
            changed["targets"] = [" ".join(tags) for tags in changed["tags"]]
        elif self._config.coarse_labels or self._names:
            changed["targets"] = [self._label(label, split) for label in features["targets"]]
        if template := self._config.input_template:
            texts = {f"{{{name}}}": features[name] for name in ("inputs", "second") if name in features}
            if "{second}" in template and "{second}" not in texts:
                raise DataError(
                    f"data.input_template={template!r}: the corpus has no second text; set data.second_feature"
                )
            changed["inputs"] = [
                filled(template, dict(zip(texts, values, strict=True))) for values in zip(*texts.values(), strict=True)
            ]
        return changed

    def _label(self, label: str, split: str) -> str:
        """Return a label as the config wants it: without its finer part, and with its other name."""
        label = label.partition(":")[0] if self._config.coarse_labels else label
        if not self._names:
            return label
        if label not in self._names:
            raise DataError(
                f"data.label_names={self._config.label_names!r}: no name for the label {label!r} of split '{split}'"
            )
        return self._names[label]


def filled(template: str, texts: dict[str, str]) -> str:
    """Return the template with texts in place of their marks; marks within a text stay."""
    parts, rest = [], template
    while rest:
        places = {rest.find(mark): mark for mark in texts if mark in rest}
        if not places:
            break
        place = min(places)
        parts += [rest[:place], texts[places[place]]]
        rest = rest[place + len(places[place]) :]
    return "".join([*parts, rest])
