"""Show from which layers of a model the labels of texts can be read: linear probes.

    transformer-jax probe --checkpoint=runs/language_model --data=labelled.tsv
    transformer-jax probe --checkpoint=runs/first --data=labelled.tsv --test=other.tsv --pooling=last

A line of --data is a text, a tab and its label. After the embedding and after every layer, a logistic regression is
fitted to one vector of each text: the mean of its tokens, or another --pooling. Its loss is the sum of the negative log
probabilities plus --l2 times half the sum of the squared weights, on features of mean 0 and deviation 1. The table has
its accuracy on texts that it was not fitted to, with Wilson's 95 % interval, and that of the same probe for shuffled
labels (control). The line above has the accuracy of the label that is most frequent in the fitted part.

These texts are a share of those of every label, --held_out, drawn by --seed; lines with equal texts stay together. Or
they are those of --test=FILE. A model with an encoder and a decoder is probed in its encoder. --output writes
OUTPUT/probe.png. Layers are counted from 0, as in the names of places (inspect --places).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from transformer_jax.cli.arguments import (
    Arguments,
    checkpoint_flag,
    choice_flag,
    integer,
    number,
    path_flag,
    switch,
)
from transformer_jax.cli.text_passes import Labelled, labelled_texts_of, layer_names, table_of
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text

if TYPE_CHECKING:
    import numpy as np

    from transformer_jax.inspection.probes import Accuracy, Probed

OVERRIDES = ("evaluation",)
logger = logging.getLogger(__name__)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    path_flag(values, "data", "file with a text, a tab and a label per line")
    path_flag(values, "test", "such a file to score the probes on; default: a part of --data")
    number(values, "held_out", "share of the texts of every label in --data that score the probes", 0.25)
    choice_flag(values, "pooling", "what stands for a text", "mean", ("mean", "first", "last", "max"))
    number(values, "l2", "penalty: this times half the sum of the squared weights", 1.0)
    integer(values, "seed", "of the held-out texts and of the control", 0, 0)
    switch(values, "json", "print JSON in place of the table")
    path_flag(values, "output", "folder for the figure; default: no figure")


def run(arguments: Arguments) -> int:
    checkpoint, values = Path(arguments.required("checkpoint")), arguments.flags
    if values.test is not None and values["held_out"].present:
        raise ConfigError("--held_out and --test: the texts of --test score the probes; leave --held_out out")
    given = labelled_texts_of("data", arguments.required("data"))
    if len({*given.labels}) < 2:
        raise DataError(f"--data={values.data}: has one label alone, '{given.labels[0]}'; a probe needs at least two")
    test = None if values.test is None else _test_texts(values.test, given)

    from transformer_jax.evaluation.loading import load
    from transformer_jax.host.compilation_cache import use_compilation_cache
    from transformer_jax.inspection.probes import probe
    from transformer_jax.inspection.text_features import text_features

    is_held_out = _held_out(values, given, test)
    use_compilation_cache()
    loaded = load(checkpoint, arguments.overrides)
    both = given if test is None else Labelled(*(a + b for a, b in zip(given, test, strict=True)))
    features = text_features(loaded, both.texts, values.pooling, lambda index: f"--{both.names[index]}")
    found = probe(features, both.labels, both.texts, None, is_held_out, values.l2, values.seed)
    fitted = len(both.texts) - found.held_out
    if values.json:
        about = {"fitted": fitted, "held_out": found.held_out, "labels": found.labels, "l2": values.l2}
        print(json_text({**about, "pooling": values.pooling, "seed": values.seed, **_numbers(found)}, ascii=True))
    else:
        print(
            f"{len(found.labels)} labels, {fitted} texts fitted, {found.held_out} held out; accuracy of the most "
            f"frequent label: {_shown(found.majority)}"
        )
        names = layer_names(len(features))
        rows = {
            name: [f"{own.value:.3f}", f"{own.low:.3f} to {own.high:.3f}", f"{control.value:.3f}"]
            for name, own, control in zip(names, found.accuracies.values(), found.control.values(), strict=True)
        }
        print(table_of("after", ["accuracy", "95 % interval", "control"], rows))
    if values.output:
        _draw(found, values.output)
    return exit_codes.OK


def _test_texts(path: str, given: Labelled) -> Labelled:
    """Return the lines of --test; raise DataError for a label that --data does not have."""
    test = labelled_texts_of("test", path)
    for name, label in zip(test.names, test.labels, strict=True):
        if label not in given.labels:
            raise DataError(f"--{name}: label '{label}' is in no line of --data")
    if shared := len({*test.texts} & {*given.texts}):
        logger.warning("--test=%s: %d of its texts are in --data too, to which the probes are fitted", path, shared)
    return test


def _held_out(values: flags.FlagValues, given: Labelled, test: Labelled | None) -> np.ndarray:
    import numpy as np

    from transformer_jax.inspection.probes import held_out_of_labels

    if test is not None:
        return np.arange(len(given.texts) + len(test.texts)) >= len(given.texts)
    try:
        return held_out_of_labels(given.labels, given.texts, values.held_out, values.seed)
    except DataError as error:
        raise DataError(f"--data={values.data}: {error}") from error


def _shown(of: Accuracy) -> str:
    return f"{of.value:.3f} ({of.low:.3f} to {of.high:.3f})"


def _numbers(found: Probed) -> dict[str, Any]:
    return {
        "most_frequent": found.majority._asdict(),
        "accuracies": {name: of._asdict() for name, of in found.accuracies.items()},
        "control": {name: of._asdict() for name, of in found.control.items()},
    }


def _draw(found: Probed, output: str) -> None:
    from transformer_jax.inspection.layer_curves import Bounded, layer_figure
    from transformer_jax.inspection.pictures import output_folder, save

    curves = {
        name: [Bounded(*accuracy) for accuracy in of.values()]
        for name, of in (("probe", found.accuracies), ("control", found.control))
    }
    level = "most frequent label", found.majority.value
    figure = layer_figure(curves, layer_names(len(found.accuracies)), "accuracy on held-out texts", level)
    print(save(figure, output_folder(Path(output)) / "probe.png"))
