"""Folders with one sub-folder per label: DIR/SET/LABEL/FILE.png, also .jpg and .jpeg.

The order within a set is that of a hash of the files' names, so that a part such as `train[:90%]` has images of every
label. Other files, folders within the folder of a label, and folders whose name begins with a dot or with two
underscores (such as __MACOSX) are left out, with a warning; a folder of a label without an image is an error, and so is
a label that the training set lacks.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from transformer_jax.config import DataConfig, nearest
from transformer_jax.data.images import SUFFIXES, read_picture
from transformer_jax.data.sources.images.image_source import MODES, Example, ImageSource, Part, parts_of
from transformer_jax.data.sources.slices import field_of, warn_of_left_out
from transformer_jax.errors import DataError
from transformer_jax.host.files import sha256_of


def image_folder(config: DataConfig) -> ImageSource:
    """Return the source of `data.dir`.

    Whole sets are compared; a label that only a part of the training set lacks is found when images are encoded.

    Raises: DataError if a folder is missing, a label has no image, or a label is not in the training set.
    """
    if not config.dir:
        raise DataError("data.dir is not set: data.source=image_folder needs the folder with train, valid and test")
    root = Path(os.path.expanduser(config.dir))
    if not root.is_dir():
        raise DataError(f"data.dir={config.dir!r} {'is not a folder' if root.exists() else 'does not exist'}")
    find = functools.cache(lambda name: _FolderSet(root, name, MODES[config.colours]))
    texts = config.split_texts().items()
    splits = {split: parts_of(field_of(split, text), text, find) for split, text in texts}
    folders = {split: _label_folders(parts) for split, parts in splits.items()}
    known = {path.name for path in folders.get("train", [])}
    unknown = [path for paths in folders.values() for path in paths if known and path.name not in known]
    if unknown:
        raise DataError(
            f"{unknown[0]}: the label of this folder is not one of the {len(known)} labels of the training set"
            f"{nearest(unknown[0].name, known)}; rename or remove the folder, or add training images with this label"
        )
    return ImageSource(config, splits)


def _label_folders(parts: Iterable[Part]) -> list[Path]:
    """Return the folders of labels of the sets of a split."""
    return [path for part in parts if isinstance(part.images, _FolderSet) for path in part.images.labels]


class _FolderSet:
    """The images of DIR/SET; the set `.` is DIR itself."""

    def __init__(self, root: Path, name: str, mode: str | None) -> None:
        folder = root / name
        if not folder.is_dir():
            have = ", ".join(sorted(path.name for path in root.iterdir() if path.is_dir())) or "none"
            raise DataError(f"{folder} does not exist; the folders of {root} are {have}")
        if stray := next((path for path in sorted(folder.iterdir()) if _is_image(path)), None):
            raise DataError(f"{stray} has no label; expected it in a sub-folder of {folder}, with the label's name")
        self._root, self._mode = root, mode
        self._files: list[tuple[Path, str]] = []
        inside = sorted(folder.iterdir())
        self.labels = [path for path in inside if path.is_dir() and not path.name.startswith((".", "__"))]
        left_out = sorted({*inside} - {*self.labels})
        for label in self.labels:
            if not _is_text(label.name):
                raise DataError(f"{label} is the folder of a label, but its name is not UTF-8; rename it")
            inside = sorted(label.iterdir())
            files: list[Path] = []
            for path in inside:
                (files if _is_image(path) else left_out).append(path)
            if not files:
                raise DataError(f"{label} is the folder of a label, but has no image; delete it, or add .png files")
            self._files += [(path, label.name) for path in files]
        if not self._files:
            raise DataError(f"{folder} has no sub-folders; expected one per label, with .png or .jpg files")
        self._files.sort(key=lambda file: hashlib.sha256(os.fsencode(self._name(file[0]))).digest())
        warn_of_left_out(folder, "is not an image in the folder of a label", left_out)

    def __len__(self) -> int:
        return len(self._files)

    def examples(self, places: range) -> Iterator[Example]:
        for place in places:
            path, label = self._files[place]
            yield read_picture(path, self._name(path), self._mode), label

    @functools.cached_property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for path, _ in self._files:
            try:
                digest.update(os.fsencode(f"{self._name(path)} {sha256_of(path)}\n"))
            except OSError as error:
                raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        return digest.hexdigest()

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()
