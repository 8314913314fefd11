"""The configs of a study as its file makes them now, beside those that its trials have had."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config import ExperimentConfig, walk
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.report.variants import Variant
from transformer_jax.sweeps.study import SEED, Axis, Range, Study
from transformer_jax.sweeps.trials import variant as resolved_variant

# What does not belong to an experiment: where the sweep keeps tokens, and the seed, which the trial has besides.
_BESIDES = ("data.cache_dir", SEED)


def fields_of(config: ExperimentConfig) -> dict[str, Any]:
    """Values by dotted name, without the seed and the folder of the token cache."""
    return {name: value for name, _, value in walk(config) if name not in _BESIDES}


def config_of(variant: Variant) -> ExperimentConfig:
    """That of its first trial; the others have other seeds."""
    return variant.trials[0].trial.config


def grid_labels(study: Study) -> Iterator[dict[str, str]]:
    """Every combination of the axes' values, in their order; none of a study with ranges, of which there is no end."""
    axes = [axis for axis in study.axes if isinstance(axis, Axis)]
    if len(axes) == len(study.axes):
        for values in itertools.product(*(axis.values for axis in axes)):
            yield dict(zip((axis.name for axis in axes), values, strict=True))


def absent_variants(study: Study, folder: Path, variants: Sequence[Variant]) -> dict[str, str]:
    """Variants of the study's grid that have no trial here, and the variant that is the same experiment, or ""."""
    there = [dict(variant.labels) for variant in variants]
    absent = [labels for labels in grid_labels(study) if labels not in there]
    overrides = overrides_of(study, folder, variants) if absent else None
    found = {}
    for labels in absent:
        fields = None if overrides is None else _from_the_file(study, folder, labels, {}, overrides)
        same = (variant.name for variant in variants if fields == fields_of(config_of(variant)))
        found[Variant(labels, ()).name] = next(same, "")
    return found


def overrides_of(study: Study, folder: Path, variants: Sequence[Variant]) -> Mapping[str, Any] | None:
    """What the configs have and the study's file does not say; None if no overrides of it make them."""

    def made_again(variant: Variant, overrides: Mapping[str, Any]) -> dict[str, Any] | None:
        fields = fields_of(config_of(variant))
        drawn = {axis.field: fields[axis.field] for axis in study.axes if isinstance(axis, Range)}
        return _from_the_file(study, folder, variant.labels, drawn, overrides)

    overrides: dict[str, Any] = {}
    for variant in variants:  # of all, since what an axis sets in some variants hides an override there
        known, wanted = made_again(variant, {}), fields_of(config_of(variant))
        if known is None:
            return None
        own = {name: value for name, value in wanted.items() if known[name] != value}
        for name in list(own):  # what follows from others, as head_dim from emb_dim, need not be said
            fewer = {other: value for other, value in own.items() if other != name}
            if made_again(variant, fewer) == wanted:
                own = fewer
        overrides |= own
    same = all(made_again(variant, overrides) == fields_of(config_of(variant)) for variant in variants)
    return overrides if same else None


def _from_the_file(
    study: Study, folder: Path, labels: Mapping[str, str], drawn: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The fields of a variant as the study's file makes them; None if that is no valid config."""
    try:
        return fields_of(resolved_variant(study, folder.absolute().parent.parent, labels, drawn, overrides))
    except ConfigError:
        return None
