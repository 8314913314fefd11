"""Files are read by one bounded function per kind; no other module of the package opens one for reading."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from transformer_jax.host.files import open_own_file
from transformer_jax.readers import (
    lines_of,
    open_file,
    open_stream,
    parse_json,
    read_bytes,
    read_json_object,
    read_stream,
    read_text,
)
from transformer_jax.readers.json_values import MAX_DEPTH


@pytest.fixture
def pipe(tmp_path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("read", [open_file, read_bytes, read_text, read_json_object])
def test_pipes_devices_and_folders_are_refused_at_once(read, pipe, tmp_path):
    for path, message in ((pipe, "pipe or a device"), (Path("/dev/zero"), "pipe or a device"), (tmp_path, "directory")):
        with pytest.raises(OSError, match=message):
            read(path)


def test_a_file_over_the_limit_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="more than 1,073,741,824 bytes"):
        read_bytes(tmp_path / "sparse")
    (tmp_path / "four").write_bytes(b"1234")
    assert read_bytes(tmp_path / "four", most=4) == b"1234"
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_bytes(tmp_path / "four", most=3)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (nested(MAX_DEPTH + 1), "nested deeper"),
        ('{"a":' * 70 + "1" + "}" * 70, "nested deeper"),
        (nested(100_000), "nested deeper"),
        ("[" * 100_000, "nested deeper"),
        ('"\\ud83d"', "half of a surrogate pair"),
        ('{"a": [{"b\\udE00": 1}]}', r"\\ude00"),
        ("1" * 5000, "limit"),
        ("{", "Expecting"),
        (b"\xff{}", "utf-8"),
    ],
)
def test_json_that_cannot_be_used_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b"\xef\xbb\xbf{}", {}),
        ('"\\ud83d\\ude00"', "😀"),
        ("[" + "[]," * 100 + "[]]", [[]] * 101),
        (b'{"a": "\xc3\xbc"}', {"a": "ü"}),
    ],
)
def test_json_that_is_right_is_read(text, values):
    assert parse_json(text) == values


def test_the_deepest_allowed_json_is_read():
    assert str(parse_json(nested(MAX_DEPTH))) == nested(MAX_DEPTH)


def test_a_json_file_without_an_object_is_refused(tmp_path):
    (tmp_path / "f").write_text("[1]")
    with pytest.raises(ValueError, match="a list, not an object"):
        read_json_object(tmp_path / "f")


def test_a_stream_that_the_user_names_may_be_a_pipe(tmp_path):
    code = (
        "import sys; from transformer_jax.readers import *; from transformer_jax.readers.files import read_stream\n"
        "with open_stream(sys.argv[1]) as stream: print([*lines_of(stream)])\n"
        "print(read_stream(sys.argv[2], 3))"
    )
    shell = 'exec "$0" -c "$1" <(printf "a\\nb") <(printf abc)'
    command = ["bash", "-c", shell, sys.executable, code]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"[b'a\\n', b'b']\nb'abc'\n"
    with pytest.raises(OSError, match="irectory"):
        open_stream(tmp_path)
    with pytest.raises(OSError, match="more than 100 bytes"):
        read_stream("/dev/zero", 100)


def test_a_line_that_does_not_end_is_refused(tmp_path):
    with open_stream("/dev/zero") as stream, pytest.raises(ValueError, match="line 1 has more than 1,000 bytes"):
        next(lines_of(stream, 1000))
    (tmp_path / "f").write_bytes(b"abc\nabcd\n\nab")
    with open_file(tmp_path / "f") as file:
        assert [*lines_of(file, 5)] == [b"abc\n", b"abcd\n", b"\n", b"ab"]
    with open_file(tmp_path / "f") as file, pytest.raises(ValueError, match="line 2 has more than 4 bytes"):
        [*lines_of(file, 4)]


def test_files_to_append_to_are_no_pipes_and_no_links(pipe, tmp_path):
    (tmp_path / "target").write_bytes(b"1")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "dangling").symlink_to("made")
    for name in ("link", "dangling"):
        with pytest.raises(OSError, match="it is a link, which is not followed"):
            open_own_file(tmp_path / name)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(OSError, match="it is a pipe or a device"):
            open_own_file(path)
    with pytest.raises(IsADirectoryError):
        open_own_file(tmp_path)
    for _ in range(2):
        with open_own_file(tmp_path / "new") as file:
            file.write(b"ab")
    assert (tmp_path / "new").read_bytes() == b"abab"
    assert (tmp_path / "target").read_bytes() == b"1"
    assert not (tmp_path / "made").exists()
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # a pipe with a reader can be opened
    with pytest.raises(OSError, match="it is a pipe or a device"):
        open_own_file(pipe)
    os.close(descriptor)


# The modules of the package.

PACKAGE = Path(__file__).parent.parent / "transformer_jax"
MODULES = {"gzip", "bz2", "lzma", "zipfile", "tarfile", "pickle", "marshal", "shelve", "safetensors", "fileinput"}
"""Modules that read files and that only readers import."""
FUNCTIONS = {
    *("json.load", "json.loads", "io.open", "io.FileIO", "io.open_code", "os.fdopen", "codecs.open", "Image.open"),
    *(f"{name}.{read}" for name in ("np", "numpy") for read in ("load", "fromfile", "memmap", "loadtxt", "genfromtxt")),
    *("importlib.resources", "resources.files", "pickle_load", "shutil.unpack_archive", "linecache.getlines"),
}
ALLOWED = {
    ("checkpoints/folders.py", "os.open"),  # a folder, to flush it to the disk
    ("host/files.py", "os.open"),  # files to append to
    ("cli/streams.py", "os.open"),  # the null device
}
"""(file, call) that may stay outside of the readers."""


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "()"


def mode_of(call: ast.Call, place: int) -> str:
    """Return the mode of a call of `open`: r by default, and "" for an argument that is no mode."""
    given = [word.value for word in call.keywords if word.arg == "mode"] or call.args[place : place + 1]
    if not given:
        return "r"
    value = given[0].value if isinstance(given[0], ast.Constant) else None
    return value if isinstance(value, str) and value and set(value) <= set("rwxabt+") else ""


def reads(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, call) of everything in a module that reads a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
                if name.split(".")[0] in MODULES or name in FUNCTIONS or name.startswith("json.load"):
                    yield node.lineno, name
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        last = name.rpartition(".")[2]
        if (
            name in FUNCTIONS
            or ".".join(name.split(".")[-2:]) in FUNCTIONS
            or name == "os.open"
            or (name == "open" and not set(mode_of(node, 1)) & set("wxa"))
            or (last == "open" and "." in name and set(mode_of(node, 0)) & {"r"} and mode_of(node, 0) != "r+b")
            or (last in ("read_text", "read_bytes") and "." in name)
        ):
            yield node.lineno, name


def test_only_readers_read_files():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if not file.startswith("readers/"):
            found += [(file, name, line) for line, name in reads(path.read_text())]
    assert not [f"{file}:{line}: {name}" for file, name, line in found if (file, name) not in ALLOWED]
    assert {(file, name) for file, name, _ in found} == ALLOWED, "an entry of ALLOWED is not needed"


@pytest.mark.parametrize(
    "source",
    [
        *("json.load(f)", "json.loads(x)", "from json import loads", "np.load(f)", "np.memmap(f)", "numpy.fromfile(f)"),
        *("open(f)", "open(f, 'rb')", "open(f, mode='r')", "p.open()", "p.open('rb')", "Path(f).open(mode='r')"),
        *("p.read_text()", "(a / b).read_bytes()", "import gzip", "from zipfile import ZipFile", "import tarfile as t"),
        *("from safetensors import safe_open", "import pickle", "Image.open(f)", "PIL.Image.open(f)", "os.open(f, 0)"),
        *("from importlib import resources\nresources.files('x')", "open(f, mode)", "os.fdopen(3)", "io.open(f)"),
        "def f():\n    import zipfile",
    ],
)
def test_a_call_that_reads_a_file_is_found(source):
    assert list(reads(source)), source


@pytest.mark.parametrize(
    "source",
    [
        *("json.dumps(x)", "np.save(f, x)", "open(f, 'w')", "open(f, 'ab', opener=o)", "p.open('xb')", "p.open('wb')"),
        *("store.open(step)", "archive.open(name)", "read_text(p)", "read_bytes(p)", "p.write_text(x)", "Image.new(x)"),
    ],
)
def test_a_call_that_reads_no_file_is_not_found(source):
    assert not list(reads(source)), source
