"""Download a dataset and write it as array_record files."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.data.sources.tfds.catalogue import ARRAY_RECORD, data_root, make_builder, open_prepared
from transformer_jax.errors import DataError


class PreparedDataset(NamedTuple):
    """A builder that reads a dataset, and whether it was prepared already."""

    builder: Any
    was_there: bool


def prepare_dataset(dataset: str, data_dir: str, manual_dir: str, show_progress: bool) -> PreparedDataset:
    """Prepare a dataset, unless it is prepared already.

    Args:
      dataset: NAME, NAME/CONFIG or NAME/CONFIG:VERSION.
      data_dir: folder of prepared datasets; empty for TFDS's default.
      manual_dir: folder of files that the user must download; empty if the dataset has none.
      show_progress: show TFDS's progress bars.
    Raises: DataError if there is no such dataset, it cannot be downloaded, or its preparation needs a library that is
      not installed.
    """
    import tensorflow_datasets as tfds

    with _quiet(), _told(dataset):
        builder = make_builder(dataset, data_dir)
        folder = Path(builder.data_dir)
        was_there = folder.exists()
        if not was_there:
            _make_root(data_root(data_dir))
            bars = tfds.enable_progress_bar if show_progress else tfds.disable_progress_bar
            bars()
            download = tfds.download.DownloadConfig(manual_dir=manual_dir or None, try_download_gcs=False)
            builder.download_and_prepare(download_config=download, file_format=ARRAY_RECORD)
    return PreparedDataset(open_prepared(folder), was_there)


def _make_root(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {root} of datasets: {error.strerror or error}") from error


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Silence TFDS, except its errors and its progress."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _told(dataset: str) -> Generator[None]:
    """Turn errors of TFDS into a DataError with the remedy."""
    from tensorflow_datasets.core.download import download_manager, extractor, util

    download_errors = (util.DownloadError, download_manager.NonMatchingChecksumError, extractor.ExtractError)
    try:
        yield
    except ImportError as error:
        if "tensorflow" in str(error):
            raise DataError(
                f'preparing {dataset} needs TensorFlow, which training does not: pip install "transformer-jax[prepare]"'
            ) from error
        raise DataError(f"preparing {dataset} needs a library that is not installed: {error}") from error
    except (OSError, *download_errors) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(
            f"cannot download {dataset}: {error}; complete files are kept; run the same command again"
        ) from error
    except (AssertionError, NotImplementedError, RuntimeError, ValueError) as error:
        raise DataError(f"TFDS cannot prepare {dataset}: {error}") from error
