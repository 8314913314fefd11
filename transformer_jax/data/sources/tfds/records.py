"""The splits of a prepared dataset of TFDS, and their records; without TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.config import DataConfig, nearest
from transformer_jax.config.data import CORPUS_SPLITS
from transformer_jax.data.sources.source import no_such_split
from transformer_jax.data.sources.tfds.catalogue import open_prepared, prepared_folder
from transformer_jax.errors import DataError
from transformer_jax.host.files import sha256_of

_READ_RECORDS = 1 << 12


class Records:
    """A dataset that the config names, with the splits that it sets; only the requested records are in memory."""

    def __init__(self, config: DataConfig) -> None:
        """Open the dataset; raise DataError if it does not exist or is not prepared."""
        self._builder = open_prepared(prepared_folder(config.dataset, config.dir))
        self._parts = config.split_texts()
        self._digests: dict[tuple[str, ...], str] = {}

    @property
    def name(self) -> str:
        return self._builder.info.full_name

    @functools.cached_property
    def features(self) -> Mapping[str, Any]:
        """Return the features by name, as TFDS describes them; empty if records are not dictionaries."""
        import tensorflow_datasets as tfds

        described = self._builder.info.features
        return dict(described.items()) if isinstance(described, tfds.features.FeaturesDict) else {}

    @functools.cached_property
    def infos(self) -> dict[str, Any]:
        """Return TFDS's description of every split that the config sets; raise DataError for a split it lacks."""
        infos = {name: self._split_info(name, text) for name, text in self._parts.items()}
        if not infos:
            raise DataError(f"data.train_split is empty; {self.name} has {', '.join(self._builder.info.splits)}")
        return infos

    def num_examples(self, name: str) -> int:
        """Return the number of records of a split; raise DataError for an unknown one."""
        return int(self._info(name).num_examples)

    def records(self, name: str, places: range | None = None, **undecoded: Any) -> Iterator[tuple[int, Any]]:
        """Yield the number and the record of every example of a split, in the order of the files.

        Args:
          places: only these. undecoded: features that stay as they are stored, by name, with the value True.
        Raises: DataError for an unknown split, or a file that cannot be read.
        """
        import tensorflow_datasets as tfds

        self._info(name)
        decoders = {feature: tfds.decode.SkipDecoding() for feature in undecoded} or None
        with self._readable(name):
            records = self._builder.as_data_source(split=self._parts[name], decoders=decoders)
            places = range(len(records)) if places is None else places
        for start in range(0, len(places), _READ_RECORDS):
            rows = places[start : start + _READ_RECORDS]
            with self._readable(name):
                read = records.__getitems__(list(rows))
            yield from zip(rows, read, strict=True)

    def sha256(self, split: str | None, *settings: str) -> str:
        """Return the digest of the files of the splits of the corpus, of the parts that are used, and of settings.

        Args:
          split: a test set that is not part of the corpus has its own digest.
        Raises: DataError if a file cannot be read.
        """
        of_corpus = tuple(name for name in self.infos if name in CORPUS_SPLITS)
        names = of_corpus if split is None or split in of_corpus else (split,)
        if (key := (*names, "", *settings)) not in self._digests:
            digest = hashlib.sha256("".join(f"{part}\n" for part in (self.name, *settings)).encode())
            sha256 = functools.cache(_sha256)
            for name in names:
                for file in self._info(name).file_instructions:
                    digest.update(f"{name} {file.skip} {file.take} {sha256(Path(file.filename))}\n".encode())
            self._digests[key] = digest.hexdigest()
        return self._digests[key]

    def _split_info(self, name: str, text: str) -> Any:
        splits = self._builder.info.splits
        field = f"data.{name}_split={text!r}" if name in CORPUS_SPLITS else f"test set {name}={text}"
        have = f"{self.name} has {', '.join(splits)}"
        try:
            info = splits[text]
            num_examples = info.num_examples
        except (KeyError, ValueError, AssertionError) as error:
            base = text.partition("[")[0]
            hint = "" if base in splits else nearest(base, splits)
            raise DataError(f"{field}: no such split or part of one{hint}; {have}") from error
        if num_examples <= 0:
            raise DataError(f"{field}: this split is empty; {have}")
        for file in info.file_instructions:
            if not Path(file.filename).is_file():
                raise DataError(f"{field}: {file.filename} is missing; copy or prepare the dataset again")
        return info

    def _info(self, name: str) -> Any:
        if name not in self.infos:
            raise no_such_split(name, self.infos)
        return self.infos[name]

    @contextlib.contextmanager
    def _readable(self, name: str) -> Generator[None]:
        try:
            yield
        except (OSError, RuntimeError, ValueError, IndexError) as error:
            folder = self._builder.data_dir
            raise DataError(f"{folder}: split {name!r} is damaged or cannot be read: {error}") from error


def _sha256(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
