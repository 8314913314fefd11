"""How much every example moves the scores of a trial: examples.json in the folder of the trial.

The file has, for each split, what tells its examples from others, and for each metric the score, and the influence of
every example on it (`tasks.metrics.jackknife`) as float32, little-endian, in base64. Only trials of studies with
contrasts have it. It is written before the result.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from transformer_jax.errors import DataError
from transformer_jax.sweeps.results import read_object, write_object
from transformer_jax.sweeps.statistics import ExampleNoise, example_noise
from transformer_jax.sweeps.study import Metric

if TYPE_CHECKING:  # imports JAX
    from transformer_jax.evaluation.scoring import Scorer

EXAMPLES = "examples.json"
_FLOAT = np.dtype("<f4")
_CURE = "delete it; the noise of the test set is then not known for the trial"
_FIELDS = {"splits": lambda value: isinstance(value, dict), "metrics": lambda value: isinstance(value, dict)}


class Influences(NamedTuple):
    """Of every example on a metric. key: of the examples; two trials with the same key have the same examples."""

    key: str
    values: Float[np.ndarray, " examples"]


def write_examples(
    folder: Path, scorer: Scorer, metrics: Sequence[Metric], scores: Mapping[str, Mapping[str, Any]]
) -> None:
    """Measure the influences of the examples on metrics of a trial, and write them into its folder.

    Args: scores: of the splits that were scored, by name; other metrics are left out.
    """
    from transformer_jax.evaluation.example_influences import example_influences, examples_key

    splits: dict[str, str] = {}
    found: dict[str, dict[str, Any]] = {}
    for split, of_split in scores.items():
        names = [metric.name.rpartition("/")[2] for metric in metrics if metric.split == split]
        for name, values in example_influences(scorer, split, names, of_split).items():
            splits[split] = examples_key(scorer, split, len(values))
            text = base64.b64encode(values.astype(_FLOAT).tobytes()).decode()
            found[f"{split}/{name}"] = {"score": of_split[name], "influences": text}
    write_object(folder / EXAMPLES, {"splits": splits, "metrics": found})


def read_examples(folder: Path, scores: Mapping[str, int | float]) -> dict[str, Influences]:
    """Return the influences in the folder of a trial by SPLIT/METRIC; none without a file.

    Args: scores: of its result. Influences on other scores, of an earlier training, are left out.
    Raises: DataError for a damaged file.
    """
    file = folder / EXAMPLES
    if not file.exists():
        return {}
    found = {}
    try:
        values = read_object(file, _FIELDS)
        for name, of in values["metrics"].items():
            if of["score"] == scores.get(name):
                array = np.frombuffer(base64.b64decode(of["influences"], validate=True), _FLOAT).astype(np.float64)
                found[name] = Influences(str(values["splits"][name.rpartition("/")[0]]), array)
    except DataError as error:
        raise DataError(f"{error}; {_CURE}") from error
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise DataError(f"{file}: does not have the influences of examples: {error}; {_CURE}") from error
    return found


def noise_of_difference(terms: Sequence[tuple[int, Mapping[int, Influences]]]) -> ExampleNoise | None:
    """Return the noise of the test set in a difference; None if it is not known.

    It is measured with the seeds whose trials have influences of the same examples in all terms, two or more.

    Args: terms: the sign of each term, and the influences of its trials by seed.
    """
    (_, first), *others = terms
    seeds = [seed for seed in first if all(seed in of for _, of in others)]
    keys = {(of[seed].key, len(of[seed].values)) for _, of in terms for seed in seeds}
    if len(seeds) < 2 or len(keys) != 1:
        return None
    return example_noise(np.stack([sum(sign * of[seed].values for sign, of in terms) for seed in seeds]))
