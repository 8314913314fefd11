"""Notes on the sizes and steps that `equal_parameters` and `equal_flops` have chosen for the variants of a study."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.equal_sizes import TOLERANCE, EqualParameters
from transformer_jax.sweeps.study import STEPS, Study
from transformer_jax.sweeps.trials import chosen_fields, grid_labels, variant, variant_name


def notes_on_equal(study: Study, overrides: Mapping[str, Any]) -> list[str]:
    """Return a note for every baseline variant with the sizes that follow from it, and one with the steps.

    Variants without a valid config are left out; the search reports them. overrides: as in `trials.variant`.
    """
    equal, sized, steps = study.equal_sizes, {}, []
    for labels in grid_labels(study) if equal is not None or study.equal_flops else ():
        with contextlib.suppress(ConfigError):
            chosen, name = chosen_fields(study, labels, overrides), variant_name(labels)
            if equal is not None:
                baseline = study.baseline_variant(labels)
                wanted = equal.count(variant(study, baseline, {}, overrides))
                said = sized.setdefault(
                    variant_name(baseline), [f"{wanted:,} {equal.counted} as {variant_name(baseline)}"]
                )
                count = equal.count(variant(study, labels, {}, overrides)) if chosen.keys() - {STEPS} else wanted
                said += [
                    f"{field}={value} with {name} ({count / wanted - 1:+.2%})"
                    for field, value in chosen.items()
                    if field != STEPS
                ]
            if STEPS in chosen:
                steps.append(f"{chosen[STEPS]:,} with {name}")
    notes = [f"equal parameters: {'; '.join(said)}" for said in sized.values()]
    return [*notes, *([f"equal operations: {STEPS} is {', '.join(steps)}"] if steps else [])]


def sentences_on_equal(study: Study) -> Iterator[str]:
    """Yield sentences on what is equal by construction, for a report."""
    if (equal := study.equal_sizes) is not None:
        compared = {one if isinstance(one, str) else one.axis for one in study.contrasts}
        reference = {axis: value for axis, value in study.reference_variant.items() if not compared or axis in compared}
        yield (
            f"{_fields(equal)} is set so that every variant has as many {equal.counted} as that with "
            f"{variant_name(reference)}, to {TOLERANCE:.1%}."
        )
    if study.equal_flops:
        of = "every variant"
        if isinstance(study.equal_flops, Mapping):
            of = f"every variant with {variant_name(study.equal_flops)}"
        yield (
            f"{STEPS} is set so that {of} trains with as many operations as {variant_name(study.reference_variant)}: "
            "those of the matrix products, of attention with the keys that the mask shows."
        )


def _fields(equal: EqualParameters) -> str:
    return equal.fields[0] if len(equal.fields) == 1 else f"The first of {', '.join(equal.fields)} that a variant reads"
