"""Readers of arrays, archives and tensors: right content is read, and each damage is one ValueError, before memory."""

import gzip
import io
import json
import os
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from transformer_jax.readers import archives
from transformer_jax.readers.archives import open_gzip, open_zip, read_gzip
from transformer_jax.readers.arrays import map_numbers, open_npz, read_npy
from transformer_jax.readers.tensors import read_tensor_places

READERS = [read_npy, read_gzip, read_tensor_places, lambda path: list_zip(path), lambda path: npz(path)]


def list_zip(path: Path) -> dict[str, bytes]:
    with open_zip(path) as archive:
        found = {}
        for name in archive.names:
            with archive.open(name) as stream:
                found[name] = stream.read()
        return found


def npz(path: Path) -> dict[str, np.ndarray]:
    with open_npz(path) as arrays:
        return {name: arrays.read(name) for name in arrays.names}


def npy(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version)
    return stream.getvalue()


def with_header(text: str, numbers: bytes = b"", version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes((version, 0)) + length + text.encode() + numbers


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


@pytest.fixture
def write(tmp_path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        (tmp_path / "file").write_bytes(data)
        return tmp_path / "file"

    return write


@pytest.mark.parametrize("read", READERS)
def test_pipes_devices_and_folders_are_refused_at_once(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in ((tmp_path / "pipe", "pipe"), (Path("/dev/zero"), "device"), (tmp_path, "directory")):
        with pytest.raises(OSError, match=message):
            read(path)


@pytest.mark.parametrize("read", READERS)
def test_other_files_are_refused(read, write):
    for data in (b"\0" * 7, b"PK\5\6", b"\x1f\x8b", b"\x93NUMPY", b"[1, 2]" * 9, os.urandom(300)):
        with pytest.raises(ValueError, match=r"damaged|begin|header|bytes"):
            read(write(data))


ARRAYS = [
    np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.arange(3, dtype=">i4"),
    np.array(["a", "bü", "😀"]),
    np.array(["a", "b"], ">U3"),
    np.array([b"a", b"bc"]),
    np.array([True, False]),
    np.array(5.0),
    np.zeros((0, 4), np.uint8),
    np.array([], "U5"),
    np.array([1j], np.complex64),
    np.float16([1.5, np.nan]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype.str}{list(a.shape)}")
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_arrays_equal_those_of_numpy(array, version, write):
    stored = npy(array, version)
    found = read_npy(write(stored))
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, np.load(io.BytesIO(stored)))
    for save in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        save(stream, x=array, **{"a/b": array})
        of_file = npz(write(stream.getvalue()))
        assert [*of_file] == ["x", "a/b"]
        for found in of_file.values():
            np.testing.assert_array_equal(found, array)


HEADERS = [
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", "4,000,000,000,000 bytes"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 10)}", "160 bytes, float32 .4, 10., but 8 follow"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "4 bytes, float32 .1., but 8 follow"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -2)}", "the shape is"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': [2]}", "the shape is"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (2.0,)}", "the shape is"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 2)}", "the shape is"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 1000000000000000000000)}", "too large"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 33 + "2)}", "too large"),
    ("{'descr': '<f4', 'fortran_order': 1, 'shape': (2,)}", "fortran_order"),
    ("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}", "neither of numbers"),
    ("{'descr': '|V2', 'fortran_order': False, 'shape': (4,)}", "neither of numbers"),
    ("{'descr': '<M8[s]', 'fortran_order': False, 'shape': (1,)}", "neither of numbers"),
    ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "objects"),
    ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", "record of several types"),
    ("{'descr': None, 'fortran_order': False, 'shape': (2,)}", "record of several types"),
    ("{'descr': 'nope', 'fortran_order': False, 'shape': (2,)}", "header"),
    ("{'descr': '<f4', 'shape': (2,)}", "header"),
    ("{[]: 1}", "header"),
    ("[1, 2]", "header"),
    ("__import__('os')", "header"),
    ("(" * 5000, "header"),
    ("-" * 9000 + "1", "header"),
    ("{'a': '" + "x" * 10_001 + "'}", "10,000"),
    ("'\0'", "header"),
]


@pytest.mark.parametrize(("text", "message"), HEADERS)
def test_headers_that_cannot_be_right_are_refused_before_memory_is_asked_for(text, message, write, monkeypatch):
    monkeypatch.setattr(np, "empty", lambda *args: pytest.fail("memory was asked for"))
    for version in (1, 2, 3):
        stored = with_header(text, b"\0" * 8, version)
        with pytest.raises(ValueError, match=message):
            read_npy(write(stored))
        with pytest.raises(ValueError, match=rf"its array 'x': .*{message}"):
            npz(write(zipped({"x.npy": stored})))


def test_texts_of_characters_that_do_not_exist_are_refused(write):
    stored = with_header("{'descr': '<U1', 'fortran_order': False, 'shape': (1,)}", b"\xff" * 4)
    with pytest.raises(ValueError, match="character"):
        read_npy(write(stored))


def test_every_change_of_a_small_npz_is_an_error_or_the_same_arrays(write):
    array = np.arange(6, dtype=np.int16)
    stored = zipped({"x.npy": npy(array)})
    for place in range(len(stored)):
        for data in (
            stored[:place] + bytes((stored[place] ^ 255,)) + stored[place + 1 :],
            stored[:place],
            stored[:place] + b"\0",
        ):
            try:
                found = npz(write(data))
            except ValueError:
                continue
            # Dates and the like have no effect; a changed name is another array.
            assert all(np.array_equal(value, array) for value in found.values())


def test_zip_archives_that_expand_too_far_are_refused_before_they_are_read(write, monkeypatch):
    monkeypatch.setattr(archives, "MAX_EXPANDED_BYTES", 1000)
    bomb = zipped({"x.npy": npy(np.zeros(1 << 20, np.uint8))})
    assert len(bomb) < 5000
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *args: pytest.fail("was opened"))
    with pytest.raises(ValueError, match=r"its file 'x\.npy': it expands to more than .*expand it first"):
        npz(write(bomb))


def test_sizes_that_an_archive_declares_are_not_believed(write):
    stored = bytearray(zipped({"a": b"0" * 500}))
    place = stored.rindex(b"PK\1\2") + 24  # the expanded size in the directory
    assert struct.unpack_from("<I", stored, place) == (500,)
    for size in (1, 499, 501, 1 << 30, 0xFFFFFFF0):
        struct.pack_into("<I", stored, place, size)
        with pytest.raises(ValueError, match=r"damaged|expands"):
            list_zip(write(bytes(stored)))


def link() -> bytes:
    info = zipfile.ZipInfo("a")
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    return stream.getvalue()


def twice() -> bytes:
    stored = zipped({"aa": b"1", "bb": b"2"})
    return stored.replace(b"bb", b"aa")


def encrypted() -> bytes:
    stored = bytearray(zipped({"a": b"1"}))
    stored[stored.index(b"PK\1\2") + 8] |= 1
    return bytes(stored)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (zipped({"../a": b""}), "leaves the folder"),
        (zipped({"a/../../b": b""}), "leaves the folder"),
        (zipped({"/a": b""}), "leaves the folder"),
        (zipped({"C:/a": b""}), "leaves the folder"),
        (zipped({"..\\a": b""}), "leaves the folder"),
        (link(), "is a link"),
        (twice(), "two files"),
        (encrypted(), "encrypted"),
        (zipped({"a": b"1"}, zipfile.ZIP_BZIP2), "another method"),
        (zipped({"a": b"1"}, zipfile.ZIP_LZMA), "another method"),
    ],
)
def test_unsafe_archives_are_refused(stored, message, write):
    with pytest.raises(ValueError, match=message):
        list_zip(write(stored))


def test_a_directory_of_an_archive_is_bounded(write):
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 40_000_000, 0, 0)
    with pytest.raises(ValueError, match="directory has more than"):
        list_zip(write(b"\0" * 40_000_000 + end))


def test_zip_archives_that_are_right_are_read(write):
    content = {"a": b"1" * 3_000_000, "b/c": b"", "ü": b"x"}
    assert list_zip(write(zipped(content))) == content == list_zip(write(zipped(content, zipfile.ZIP_STORED)))


def test_gzip_streams_are_read_and_bounded(write):
    text = b"one\ntwo\n" * 50_000
    path = write(gzip.compress(text[:100]) + gzip.compress(text[100:]))
    assert read_gzip(path) == text
    with open_gzip(path) as stream:
        assert stream.readline() == b"one\n"
    assert read_gzip(path, most=len(text)) == text
    with pytest.raises(ValueError, match=f"more than {len(text) - 1:,} bytes"):
        read_gzip(path, most=len(text) - 1)


def test_two_gigabytes_of_zeros_are_refused(write):
    block = gzip.compress(bytes(1 << 26))
    with open_gzip(write(block * 32)) as stream:
        blocks = iter(lambda: len(stream.read(1 << 22)), 0)
        with pytest.raises(ValueError, match=r"expands to more than 1,073,741,824"):
            sum(blocks)


def test_damaged_gzip_streams_are_named(write):
    stored = gzip.compress(os.urandom(300), mtime=0)
    for place in range(10, len(stored)):
        changed = stored[:place] + bytes((stored[place] ^ 255,)) + stored[place + 1 :]
        for data in (changed, stored[:place]):
            with pytest.raises(ValueError, match="damaged or incomplete"):
                read_gzip(write(data))
    with pytest.raises(ValueError, match="damaged or incomplete"):
        read_gzip(write(stored + b"more"))


TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float16([1, 2]), "c": np.zeros((0, 2), np.int64)}


def safe(header: object, numbers: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + numbers


def test_places_of_tensors_equal_those_of_the_library(write):
    path = write(safetensors.numpy.save(TENSORS, {"format": "pt"}))
    places = read_tensor_places(path)
    assert {name: (place.dtype, place.shape) for name, place in places.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("F16", (2,)),
        "c": ("I64", (0, 2)),
    }
    for name, expected in TENSORS.items():
        np.testing.assert_array_equal(map_numbers(path, expected.dtype, *places[name][1:]), expected)
    assert read_tensor_places(write(safe({}))) == {}


def entry(dtype: object = "F32", shape: object = (1,), offsets: object = (0, 4)) -> object:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ([1], "not an object"),
        (b"{", "Expecting"),
        (b"\xff\xff", "utf-8"),
        (b"[" * 100_000, "nested deeper"),
        ({"a": 5}, "has no object"),
        ({"a": None}, "has no object"),
        (entry(dtype="X9"), "the unknown type 'X9'"),
        (entry(dtype=["F32"]), "the unknown type"),
        (entry(dtype=None), "the unknown type"),
        (entry(shape=1), "the shape"),
        (entry(shape=[1.0]), "the shape"),
        (entry(shape=[True]), "the shape"),
        (entry(shape=["1"]), "the shape"),
        (entry(shape=[-1, -1]), "the shape"),
        (entry(shape=[10**12, 10**12]), "the shape"),
        (entry(shape=[0, 10**20], offsets=(0, 0)), "the shape"),
        (entry(offsets=4), "the places"),
        (entry(offsets=[0]), "the places"),
        (entry(offsets=[0, "4"]), "the places"),
        (entry(offsets=[0, None]), "the places"),
        (entry(offsets=[-4, 0]), "the places"),
        (entry(offsets=[4, 8]), "begins at byte 4"),
        (entry(offsets=[0, 8]), "needs 4 bytes, but has 8"),
        (entry(offsets=[4, 0]), "needs 4 bytes, but has -4"),
        (entry(shape=[2], offsets=[0, 8]), "end at byte"),
        (entry(shape=[0], offsets=[0, 0]), "end at byte"),
        (entry(shape=[10**12], offsets=[0, 4 * 10**12]), "end at byte"),
        ({**entry(), **{"b": entry()["a"]}}, "begins at byte 0"),
    ],
)
def test_headers_of_tensors_that_cannot_be_right_are_refused(header, message, write):
    stored = safe(header, b"\0" * 4)
    with pytest.raises(ValueError, match=message):
        read_tensor_places(write(stored))


@pytest.mark.parametrize("length", [0, 1 << 20, 1 << 63, (1 << 64) - 1])
def test_lengths_of_headers_are_not_believed(length, write):
    with pytest.raises(ValueError, match=r"would have|Expecting"):
        read_tensor_places(write(struct.pack("<Q", length) + b"{}"))


def test_an_array_that_does_not_fit_its_file_is_not_mapped(write):
    path = write(b"\1\0\2\0")
    assert map_numbers(path, np.uint16, (2,)).tolist() == [1, 2]
    assert map_numbers(path, np.uint16, (1,), 2).tolist() == [2]
    assert map_numbers(path, np.uint16, (0, 3)).shape == (0, 3)
    for shape, start in (((3,), 0), ((2,), 1), ((1 << 61,), 0)):
        with pytest.raises(ValueError, match="ends at byte"):
            map_numbers(path, np.uint16, shape, start)
