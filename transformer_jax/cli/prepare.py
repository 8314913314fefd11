"""Download a dataset of TFDS and write it in the form that `data.source=tfds` reads.

    transformer-jax prepare --dataset=embedded_translate/en-de-5000-500 --data_dir=data
    transformer-jax prepare --dataset=wmt14_translate/de-en --data_dir=data

Names are those of the catalogue of TensorFlow Datasets, NAME or NAME/CONFIG, and of the embedded corpus:
embedded_translate/SOURCE-TARGET or SOURCE-TARGET-TRAIN-EVAL, two locales and numbers of pairs. To prepare most of the
catalogue TensorFlow is needed, pip install "transformer-jax[prepare]"; reading a prepared dataset never needs it.
Prints the folder of the dataset, its splits and features, and the flags to train with. A dataset that is already
prepared is left unchanged.
"""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

from transformer_jax import exit_codes
from transformer_jax.cli.arguments import Arguments, path_flag, text

OVERRIDES = ()

_HELD_OUT = 2000  # examples of train for validation, where a dataset has no split for it


def define(values: flags.FlagValues) -> None:
    text(values, "dataset", "name of the dataset, as in wmt14_translate/de-en")
    path_flag(values, "data_dir", "where to prepare it; default: where TFDS does, ~/tensorflow_datasets")
    path_flag(values, "manual_dir", "holds the files that one has to download oneself, for datasets that say so")


def run(arguments: Arguments) -> int:
    from transformer_jax.data.sources.tfds.preparing import prepare_dataset

    values = arguments.flags
    builder, was_there = prepare_dataset(
        arguments.required("dataset"), values.data_dir or "", values.manual_dir or "", sys.stderr.isatty()
    )
    info, folder = builder.info, Path(builder.data_dir)
    dataset = "/".join(filter(None, (info.name, info.config_name)))
    splits = {name: split.num_examples for name, split in info.splits.items()}
    print(f"{info.full_name} {'was prepared before: nothing to do' if was_there else 'is prepared'}")
    print(f"  folder    {folder}")
    print(f"  splits    {', '.join(f'{name} {count:,}' for name, count in splits.items())}")
    print(f"  features  {', '.join(f'{name} ({kind})' for name, kind in _features(info).items())}")
    fields = {"source": "tfds", "dataset": dataset}
    if values.data_dir:
        fields["dir"] = values.data_dir
    chosen, open_questions = _text_fields(info)
    fields |= _split_fields(splits) | chosen
    flags = [f"--config.data.{name}={value}" for name, value in fields.items()]
    print(f"Train with it:\n  {shlex.join(flags)}")
    if open_questions:
        print(f"  and {open_questions}")
    print(f"Where there is no network, copy the folder and give the copy as data.dir:\n  {folder}")
    return exit_codes.OK


def _features(info: Any) -> dict[str, str]:
    """Name -> kind, such as Text."""
    items = info.features.items() if hasattr(info.features, "items") else ()
    return {name: type(feature).__name__ for name, feature in sorted(items)}


def _split_fields(splits: Mapping[str, int]) -> dict[str, str]:
    """Which split is which: all three, since the config file may name others.

    Args:
      splits: number of examples by name.
    """
    names = {"train": "train", "valid": "", "test": "test"}
    names["valid"] = next((name for name in ("validation", "valid", "dev") if name in splits), "")
    fields = {f"{role}_split": name if name in splits else "" for role, name in names.items()}
    if fields["train_split"] and not fields["valid_split"]:
        held_out = min(_HELD_OUT, max(splits["train"] // 10, 1))
        fields |= {"train_split": f"train[:-{held_out}]", "valid_split": f"train[-{held_out}:]"}
    return fields


def _text_fields(info: Any) -> tuple[dict[str, str], str]:
    """Return the fields that say which texts are read, and what is left for the user to choose."""
    texts = [name for name, kind in _features(info).items() if kind == "Text"]
    if len(texts) == 1:
        return {}, f"another dataset: this one has one text, {texts[0]}, and translation needs two"
    pair = [name for name in info.supervised_keys or () if name in texts]
    if len(pair) == 2:
        return {"source_locale": pair[0], "target_locale": pair[1]}, ""
    return {}, f"--config.data.input_feature and target_feature, two of its texts: {', '.join(texts) or 'it has none'}"
