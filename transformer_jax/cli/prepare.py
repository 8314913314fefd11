"""Download a dataset and write it in the form that training reads.

    transformer-jax prepare --dataset=multi30k --data_dir=data
    transformer-jax prepare --dataset=embedded_translate/en-de-5000-500 --data_dir=data
    transformer-jax prepare --dataset=wmt14_translate/de-en --data_dir=data

DATASET is the name of a built-in config that needs a corpus: multi30k, multi30k_wu2021, tatoeba or wmt14. The text
files are written to DATA_DIR/DATASET. An interrupted download continues when the command is run again. Without network
the command says which files to put where.

Other datasets are those of TensorFlow Datasets, and wmt14 is one of them. Their names are NAME/CONFIG or NAME, or of
the embedded corpus: embedded_translate/SOURCE-TARGET or embedded_translate/SOURCE-TARGET-TRAIN-EVAL, with two locales
and two numbers of pairs. To prepare most of them, TensorFlow is needed: pip install "transformer-jax[prepare]". To read
a prepared dataset it is not needed.

The command prints the folder of the dataset, its splits, and the flags to train with. A dataset that is already
prepared is not changed.
"""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from absl import flags

from transformer_jax.cli.arguments import Arguments, path_flag, text
from transformer_jax.config import nearest
from transformer_jax.data.downloads.table import CORPORA, NAMES, TFDS_NAMES, Corpus
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host import exit_codes

OVERRIDES = ()


def define(values: flags.FlagValues) -> None:
    text(values, "dataset", f"name of the dataset: {', '.join(NAMES)}, or one of TFDS, such as wmt14_translate/de-en")
    path_flag(values, "data_dir", "folder to prepare it in; default: data, for datasets of TFDS ~/tensorflow_datasets")
    path_flag(values, "manual_dir", "folder with the manually downloaded files, for datasets that require them")


def run(arguments: Arguments) -> int:
    dataset = arguments.required("dataset")
    return _prepare_corpus(dataset, arguments) if dataset in CORPORA else _prepare_tfds(dataset, arguments)


def _prepare_corpus(name: str, arguments: Arguments) -> int:
    """Prepare a corpus of the table of downloads."""
    from transformer_jax.data.downloads.preparing import prepare_corpus

    values, corpus = arguments.flags, CORPORA[name]
    data_dir = Path(values.data_dir or "data")
    if values.manual_dir:
        raise ConfigError(f"--manual_dir is for datasets of TFDS; put files into {data_dir / 'downloads' / name}")
    folder, was_there = prepare_corpus(name, data_dir)
    if corpus.endings == ("npz",):
        _print_result(name, was_there, folder, "images", _images(folder / corpus.outputs[0]))
    else:
        _print_result(name, was_there, folder, "lines", _lines(folder, corpus))
    print(f"  licence   {corpus.licence}; {corpus.page}")
    print(f"Flags to train with it:\n  {shlex.join([f'--config={name}', f'--config.data.dir={folder}'])}")
    return exit_codes.OK


def _lines(folder: Path, corpus: Corpus) -> dict[str, int]:
    from transformer_jax.data.sources.lines import TextFile, find

    files = {prefix: find(folder, f"{prefix}.{corpus.endings[0]}") for prefix in corpus.prefixes}
    return {prefix: TextFile(path, encoding=corpus.encoding).contents.num_lines for prefix, path in files.items()}


def _images(path: Path) -> dict[str, int]:
    from transformer_jax.config import DataConfig
    from transformer_jax.data.sources import load_source

    source = load_source(DataConfig(source="npz", dir=str(path), valid_split=""))
    return {name: source.num_examples(name) for name in source.split_names}


def _prepare_tfds(name: str, arguments: Arguments) -> int:
    """Prepare a dataset of TFDS, or of the config of that name."""
    from transformer_jax.data.sources.tfds.catalogue import UnknownDatasetError
    from transformer_jax.data.sources.tfds.fields import features_of, split_fields, text_fields
    from transformer_jax.data.sources.tfds.preparing import prepare_dataset

    values = arguments.flags
    try:
        builder, was_there = prepare_dataset(
            TFDS_NAMES.get(name, name), values.data_dir or "", values.manual_dir or "", sys.stderr.isatty()
        )
    except UnknownDatasetError as error:
        raise DataError(f"{error}; built-in configs have {', '.join(NAMES)}{nearest(name, NAMES)}") from error
    info, folder = builder.info, Path(builder.data_dir)
    dataset = "/".join(filter(None, (info.name, info.config_name)))
    splits = {name: split.num_examples for name, split in info.splits.items()}
    _print_result(info.full_name, was_there, folder, "splits", splits)
    print(f"  features  {', '.join(f'{name} ({kind})' for name, kind in features_of(info).items())}")
    images = any(kind == "Image" for kind in features_of(info).values())
    fields = {"source": "tfds_images" if images else "tfds", "dataset": dataset}
    if values.data_dir:
        fields["dir"] = values.data_dir
    # A config chooses the texts by its own locales.
    chosen, open_questions = ({}, "") if name in TFDS_NAMES or images else text_fields(info)
    fields |= split_fields(splits) | chosen
    flags = [f"--config={name}"] if name in TFDS_NAMES else []
    flags += [f"--config.data.{field}={value}" for field, value in fields.items()]
    print(f"Flags to train with it:\n  {shlex.join(flags)}")
    if open_questions:
        print(f"  and {open_questions}")
    print(f"To use it on a machine without network, copy the folder and set data.dir to the copy:\n  {folder}")
    return exit_codes.OK


def _print_result(name: str, was_there: bool, folder: Path, what: str, counts: Mapping[str, int]) -> None:
    """Print what was prepared, and where. what: "splits" (of examples), "lines" or "images"; counts: by split."""
    print(f"{name} {'was already prepared: nothing to do' if was_there else 'is prepared'}")
    print(f"  folder    {folder}")
    print(f"  {what:9} {', '.join(f'{split} {count:,}' for split, count in counts.items())}")
