"""Download a TFDS dataset and write it in the format that `data.source=tfds` reads.

    transformer-jax prepare --dataset=embedded_translate/en-de-5000-500 --data_dir=data
    transformer-jax prepare --dataset=wmt14_translate/de-en --data_dir=data

DATASET is a name of the TensorFlow Datasets catalogue, NAME or NAME/CONFIG, or the embedded corpus:
embedded_translate/SOURCE-TARGET or embedded_translate/SOURCE-TARGET-TRAIN-EVAL, with two locales and two numbers of
pairs. To prepare most datasets of the catalogue, TensorFlow is needed: pip install "transformer-jax[prepare]". To read
a prepared dataset it is not needed. The command prints the folder of the dataset, its splits and features, and the
flags to train with. A dataset that is already prepared is not changed.
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

_HELD_OUT = 2000  # most examples of train to use for validation if the dataset has no validation split


def define(values: flags.FlagValues) -> None:
    text(values, "dataset", "name of the dataset, such as wmt14_translate/de-en")
    path_flag(values, "data_dir", "folder to prepare it in; default that of TFDS, ~/tensorflow_datasets")
    path_flag(values, "manual_dir", "folder with the manually downloaded files, for datasets that require them")


def run(arguments: Arguments) -> int:
    from transformer_jax.data.sources.tfds.preparing import prepare_dataset

    values = arguments.flags
    builder, was_there = prepare_dataset(
        arguments.required("dataset"), values.data_dir or "", values.manual_dir or "", sys.stderr.isatty()
    )
    info, folder = builder.info, Path(builder.data_dir)
    dataset = "/".join(filter(None, (info.name, info.config_name)))
    splits = {name: split.num_examples for name, split in info.splits.items()}
    print(f"{info.full_name} {'was already prepared: nothing to do' if was_there else 'is prepared'}")
    print(f"  folder    {folder}")
    print(f"  splits    {', '.join(f'{name} {count:,}' for name, count in splits.items())}")
    print(f"  features  {', '.join(f'{name} ({kind})' for name, kind in _features(info).items())}")
    fields = {"source": "tfds", "dataset": dataset}
    if values.data_dir:
        fields["dir"] = values.data_dir
    chosen, open_questions = _text_fields(info)
    fields |= _split_fields(splits) | chosen
    flags = [f"--config.data.{name}={value}" for name, value in fields.items()]
    print(f"Flags to train with it:\n  {shlex.join(flags)}")
    if open_questions:
        print(f"  and {open_questions}")
    print(f"To use it on a machine without network, copy the folder and set data.dir to the copy:\n  {folder}")
    return exit_codes.OK


def _features(info: Any) -> dict[str, str]:
    """Return name -> kind of every feature; a kind is, for example, Text."""
    items = info.features.items() if hasattr(info.features, "items") else ()
    return {name: type(feature).__name__ for name, feature in sorted(items)}


def _split_fields(splits: Mapping[str, int]) -> dict[str, str]:
    """Return the config fields that name the splits: all three, because the config file may name others.

    Args:
      splits: split name -> number of examples.
    """
    names = {"train": "train", "valid": "", "test": "test"}
    names["valid"] = next((name for name in ("validation", "valid", "dev") if name in splits), "")
    fields = {f"{role}_split": name if name in splits else "" for role, name in names.items()}
    if fields["train_split"] and not fields["valid_split"]:
        held_out = min(_HELD_OUT, max(splits["train"] // 10, 1))
        fields |= {"train_split": f"train[:-{held_out}]", "valid_split": f"train[-{held_out}:]"}
    return fields


def _text_fields(info: Any) -> tuple[dict[str, str], str]:
    """Return the config fields that name the texts to read, and the choice that is left to the user ("" if none)."""
    texts = [name for name, kind in _features(info).items() if kind == "Text"]
    if len(texts) == 1:
        return {}, f"another dataset: this one has one text feature, {texts[0]}; translation needs two"
    pair = [name for name in info.supervised_keys or () if name in texts]
    if len(pair) == 2:
        return {"source_locale": pair[0], "target_locale": pair[1]}, ""
    return {}, (
        "--config.data.input_feature and --config.data.target_feature, two of its text features: "
        f"{', '.join(texts) or 'it has none'}"
    )
