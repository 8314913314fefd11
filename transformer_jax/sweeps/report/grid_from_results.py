"""Comparison of the configs that a study's file makes now with the configs of the trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.config import ExperimentConfig, causes_of, is_derived, walk
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.report.variants import Variant
from transformer_jax.sweeps.study import SEED, Range, Study
from transformer_jax.sweeps.trials import grid_labels
from transformer_jax.sweeps.trials import variant as resolved_variant

# Not part of an experiment: the folder of the token cache, and the seed, which differs by trial.
_EXCLUDED = ("data.cache_dir", SEED)


def values_by_name(config: ExperimentConfig) -> dict[str, Any]:
    """Return values by dotted name, without the seed and the folder of the token cache."""
    return {name: value for name, _, value in walk(config) if name not in _EXCLUDED}


def config_of_variant(variant: Variant) -> ExperimentConfig:
    """Return the config of the first trial of a variant; the others differ only in the seed."""
    return variant.trials[0].trial.config


def derived_differences(variants: Sequence[Variant]) -> dict[str, list[str]]:
    """Return the derived defaults that differ between variants, and for each the differing fields it follows from.

    A field of which a variant has another value than the derived one is left out.
    """
    configs = [config_of_variant(variant) for variant in variants]
    values = [values_by_name(config) for config in configs]
    declared = {name: field.metadata.get("derived_from", ()) for config in configs for name, field, _ in walk(config)}
    differing = [name for name in declared if len({of.get(name) for of in values}) > 1]
    derived = {n: declared[n] for n in differing if declared[n] and all(is_derived(config, n) for config in configs)}
    causes = {name: [c for c in causes_of(name, derived) if c in differing and c not in derived] for name in derived}
    return {name: of for name, of in causes.items() if of}


def absent_variants(study: Study, variants: Sequence[Variant]) -> dict[str, str]:
    """Return the grid's variants that have no trial here: name -> name of one that is the same experiment, or ""."""
    there = [dict(variant.labels) for variant in variants]
    absent = [labels for labels in grid_labels(study) if labels not in there]
    overrides = overrides_of(study, variants) if absent else None
    found = {}
    for labels in absent:
        fields = None if overrides is None else _from_the_file(study, labels, {}, overrides)
        same = (variant.name for variant in variants if fields == values_by_name(config_of_variant(variant)))
        found[Variant(labels, ()).name] = next(same, "")
    return found


def overrides_of(study: Study, variants: Sequence[Variant]) -> Mapping[str, Any] | None:
    """Return the config overrides that the sweep was run with, or None if no overrides explain the configs."""

    def made_again(variant: Variant, overrides: Mapping[str, Any]) -> dict[str, Any] | None:
        fields = values_by_name(config_of_variant(variant))
        drawn = {axis.field: fields[axis.field] for axis in study.axes if isinstance(axis, Range)}
        return _from_the_file(study, variant.labels, drawn, overrides)

    overrides: dict[str, Any] = {}
    for variant in variants:  # all variants: where an axis sets a field, it hides an override
        known, wanted = made_again(variant, {}), values_by_name(config_of_variant(variant))
        if known is None:
            return None
        own = {name: value for name, value in wanted.items() if known[name] != value}
        for name in list(own):  # leave out fields that follow from others, as head_dim from emb_dim
            fewer = {other: value for other, value in own.items() if other != name}
            if made_again(variant, fewer) == wanted:
                own = fewer
        overrides |= own
    same = all(made_again(variant, overrides) == values_by_name(config_of_variant(variant)) for variant in variants)
    return overrides if same else None


def _from_the_file(
    study: Study, labels: Mapping[str, str], drawn: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the fields of a variant as the study's file makes them; None if the config is invalid."""
    try:
        return values_by_name(resolved_variant(study, labels, drawn, overrides))
    except ConfigError:
        return None
