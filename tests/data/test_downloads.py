"""Downloads of corpora: resume, damage, missing network, unsafe archives. The only server is one on this machine."""

import ast
import contextlib
import errno
import gzip
import hashlib
import http.server
import io
import re
import stat
import threading
import time
import zipfile
from pathlib import Path

import pytest

from transformer_jax.cli.main import main
from transformer_jax.config_file import load_config_dict
from transformer_jax.data.downloads import fetching, unpacking
from transformer_jax.data.downloads.preparing import prepare_corpus
from transformer_jax.data.downloads.table import CORPORA, NAMES, TFDS_NAMES, Corpus, RemoteFile
from transformer_jax.errors import DataError
from transformer_jax.host.files import try_lock
from transformer_jax.host.progress_bars import ByteProgress

MADE_BY_HAND = {"multi30k_rnn"}  # needs the tokens of spaCy, as the docstring says
CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.py"))
TEXTS = {f"{split}.{locale}": f"{split} in {locale}\n" * 9 for split in ("train", "test") for locale in ("en", "de")}
CONTENT = bytes(range(256)) * 1000


class Server(http.server.ThreadingHTTPServer):
    """A server of `files`. Each request takes the next behaviour of `script`; after its last one, "range"."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.script, self.ranges, self.tag = {}, [], [], '"1"'

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        behaviour = server.script.pop(0) if server.script else "range"
        asked = self.headers.get("Range")
        server.ranges.append(asked)
        content = server.files.get(self.path[1:])
        if content is None or behaviour == "404":
            self.send_error(404)
            return
        start, status = 0, 200
        if asked and behaviour != "no range" and self.headers.get("If-Range", server.tag) == server.tag:
            start, status = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]), 206
            if start >= len(content):
                self.send_error(416)
                return
        self.send_response(status)
        self.send_header("ETag", server.tag)
        self.send_header("Content-Length", str(len(content) - start))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        end = start + (len(content) - start) // 2 if behaviour == "cut" else len(content)
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content[start:end])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr("transformer_jax.host.terminal.SILENCE_SECONDS", 60.0)
    monkeypatch.setattr("transformer_jax.host.terminal._stderr.last_line", time.monotonic())  # other tests were silent
    monkeypatch.setenv("no_proxy", "*")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def remote(server, name, content):
    return RemoteFile(server.url(name), len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def corpus(server, monkeypatch):
    """A corpus "tiny" in the table, whose gzip files the server has."""
    server.files = {f"{name}.gz": gzip.compress(text.encode()) for name, text in TEXTS.items()}
    files = tuple(remote(server, name, content) for name, content in server.files.items())
    corpus = Corpus("https://example.org", "none", files, ("train", "test"), unpacking.gunzipped)
    monkeypatch.setitem(CORPORA, "tiny", corpus)
    return corpus


def fetch(file, folder):
    """Download a file; return the last (bytes so far, total) that was shown."""
    shown = []
    fetching.fetch(file, folder, ByteProgress(file.size or 0, lambda done, total, rate: shown.append((done, total))))
    return shown[-1]


def of_big_file(server):
    server.files["big"] = CONTENT
    return remote(server, "big", CONTENT)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_prepares_and_shows_the_flags(tmp_path, corpus, server, capsys):
    argv = ["prepare", "--dataset=tiny", f"--data_dir={tmp_path / 'new' / 'data'}"]
    folder = tmp_path / "new" / "data" / "tiny"
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        "tiny is prepared",
        f"  folder    {folder}",
        "  lines     train 9, test 9",
        "  licence   none; https://example.org",
        "Flags to train with it:",
        f"  --config=tiny --config.data.dir={folder}",
    ]
    assert {path.name: path.read_text() for path in folder.iterdir()} == TEXTS
    assert names(folder.parent) == ["downloads", "tiny"]
    requests, before = len(server.ranges), folder.stat().st_mtime_ns
    assert main(argv) == 0
    assert capsys.readouterr().out.startswith("tiny was already prepared: nothing to do\n")
    assert (len(server.ranges), folder.stat().st_mtime_ns) == (requests, before)


@pytest.mark.parametrize(
    ("script", "ranges"),
    [
        (["cut"], [None, "bytes=128000-"]),
        (["cut", "no range"], [None, "bytes=128000-"]),
        (["cut", "cut"], [None, "bytes=128000-", "bytes=192000-"]),
    ],
    ids=["resumes", "the server ignores Range", "twice"],
)
def test_a_connection_that_ends_early(tmp_path, server, script, ranges):
    file = of_big_file(server)
    server.script = script
    shown = fetch(file, tmp_path)
    assert (tmp_path / "big").read_bytes() == CONTENT
    assert server.ranges == ranges
    assert names(tmp_path) == ["big"]
    assert shown == (len(CONTENT), len(CONTENT))


def test_a_part_file_of_an_earlier_process_is_continued(tmp_path, server):
    file = of_big_file(server)
    server.script = ["cut"] * 5
    with pytest.raises(fetching.UnreachableError, match="ended 5 times; the part file is kept"):
        fetch(file, tmp_path)
    size = (tmp_path / "big.part").stat().st_size
    assert 0 < size < len(CONTENT)
    fetch(file, tmp_path)
    assert server.ranges[-1] == f"bytes={size}-"
    assert (tmp_path / "big").read_bytes() == CONTENT


@pytest.mark.parametrize("known", [True, False], ids=["sha256", "no sha256"])
def test_a_file_that_has_changed_meanwhile_starts_again(tmp_path, server, known, capsys):
    file = of_big_file(server)
    file = file if known else file._replace(size=None, sha256=None)
    (tmp_path / "big.part").write_bytes(b"of another version")
    (tmp_path / "big.part.validator").write_text('"0"')
    shown = fetch(file, tmp_path)
    assert server.ranges == ["bytes=18-"]
    assert (tmp_path / "big").read_bytes() == CONTENT
    assert shown == (len(CONTENT), len(CONTENT))
    err = capsys.readouterr().err
    assert ("big is not verified" in err) == (not known)
    assert (f"it has sha256 {hashlib.sha256(CONTENT).hexdigest()}" in err) == (not known)


def test_a_part_file_that_is_too_long_starts_again(tmp_path, server):
    file = of_big_file(server)
    (tmp_path / "big.part").write_bytes(CONTENT * 2)
    fetch(file, tmp_path)
    assert server.ranges == [f"bytes={2 * len(CONTENT)}-", None]
    assert (tmp_path / "big").read_bytes() == CONTENT


@pytest.mark.parametrize("wrong", [CONTENT[::-1], CONTENT[:-1], CONTENT + b"0"], ids=["bytes", "short", "long"])
def test_wrong_bytes_are_deleted(tmp_path, server, wrong):
    file = of_big_file(server)
    server.files["big"] = wrong
    with pytest.raises(DataError) as caught:
        fetch(file, tmp_path)
    assert file.url in str(caught.value)
    if len(wrong) <= len(CONTENT):
        assert f"expected 256,000 bytes, sha256 {file.sha256}" in str(caught.value)
        assert f"found    {len(wrong):,} bytes, sha256 {hashlib.sha256(wrong).hexdigest()}" in str(caught.value)
    assert names(tmp_path) == []


def test_a_full_disk_keeps_the_part_file(tmp_path, corpus, monkeypatch, capsys):
    class Full(io.FileIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    opened = Path.open

    def open_full(path, mode="r", *args, **kwargs):
        return Full(path, mode) if path.suffix == ".part" else opened(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open_full)
    assert main(["prepare", "--dataset=tiny", f"--data_dir={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert f"{tmp_path}/downloads/tiny/train.en.gz.part: No space left on device. The partial file is kept" in err
    assert (tmp_path / "downloads" / "tiny" / "train.en.gz.part").exists()


def test_ctrl_c_keeps_the_part_file(tmp_path, corpus, monkeypatch, capsys):
    def interrupt(file, part, progress):
        part.write_bytes(b"123")
        raise KeyboardInterrupt

    monkeypatch.setattr(fetching, "_transfer", interrupt)
    assert main(["prepare", "--dataset=tiny", f"--data_dir={tmp_path}"]) == 130
    assert "train.en.gz.part: 3 bytes are kept; the same command continues the download" in capsys.readouterr().err


@pytest.mark.parametrize("failure", ["404", "nobody listens"])
def test_without_network_it_says_which_file_to_put_where(tmp_path, corpus, server, monkeypatch, capsys, failure):
    server.script = ["range", "404"]
    if failure == "nobody listens":
        dead = [file._replace(url=f"http://127.0.0.1:1/{file.name}") for file in corpus.files[1:]]
        files = (corpus.files[0], *dead)
        corpus = corpus._replace(files=files)
        monkeypatch.setitem(CORPORA, "tiny", corpus)
    argv = ["prepare", "--dataset=tiny", f"--data_dir={tmp_path}"]
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"transformer-jax: error: cannot download {corpus.files[1].url}: ")
    downloads = tmp_path / "downloads" / "tiny"
    assert f"put these files into {downloads} and run the same command again:\n" in err
    assert corpus.files[0].url not in err  # it has been downloaded
    for file in corpus.files[1:]:
        assert f"  {file.name} ({file.size} bytes)\n    URL     {file.url}\n    sha256  {file.sha256}\n" in err
        (downloads / file.name).write_bytes(server.files[file.name])
    requests = len(server.ranges)
    assert main(argv) == 0
    assert len(server.ranges) == requests


def test_a_wrong_file_put_by_hand_is_not_used_and_not_deleted(tmp_path, corpus, server):
    path = tmp_path / "downloads" / "tiny" / "train.en.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"<html>")
    with pytest.raises(
        DataError, match=r"train\.en\.gz is not the expected file\n.*\n.* 6 bytes.*\nDelete it or repla"
    ):
        prepare_corpus("tiny", tmp_path)
    assert path.read_bytes() == b"<html>"
    assert server.ranges == []


def test_two_processes_at_the_same_time(tmp_path, corpus):
    lock = tmp_path / "downloads" / "tiny" / ".lock"
    lock.parent.mkdir(parents=True)
    with lock.open("ab") as file:
        assert try_lock(file) == "locked"
        with pytest.raises(DataError, match="another process is preparing tiny"):
            prepare_corpus("tiny", tmp_path)
    assert prepare_corpus("tiny", tmp_path) == (tmp_path / "tiny", False)


def test_folders_that_cannot_be_used(tmp_path, corpus):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/downloads/tiny: Not a directory\. .* --data_dir"):
        prepare_corpus("tiny", tmp_path / "file")
    (tmp_path / "tiny").write_text("mine")
    with pytest.raises(DataError, match="tiny exists, but is not a folder; move it away, or pass another --data_dir"):
        prepare_corpus("tiny", tmp_path)
    (tmp_path / "tiny").unlink()
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "train.en.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"tiny exists, but has no train\.de"):
        prepare_corpus("tiny", tmp_path)


def test_nothing_of_a_killed_process_is_used(tmp_path, corpus):
    left = tmp_path / ".tiny.part"
    left.mkdir()
    (left / "train.en").write_text("half")
    folder, _ = prepare_corpus("tiny", tmp_path)
    assert names(folder) == sorted(TEXTS)
    assert not left.exists()


def unpacked(unpack, path):
    return {name: b"".join(content) for name, content in unpack({path.name: path})}


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(CONTENT)[:-9]], ids=["other", "cut"])
def test_a_damaged_gzip_file(tmp_path, content):
    path = tmp_path / "train.en.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train\.en\.gz cannot be used: it is damaged or incomplete"):
        unpacked(unpacking.gunzipped, path)


def zip_of(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return path


PAIRS = unpacking.split_by_hash("pairs.zip", "deu.txt")


def test_bombs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "MAX_BYTES", 1000)
    path = tmp_path / "train.en.gz"
    path.write_bytes(gzip.compress(b"0" * 1001))
    with pytest.raises(DataError, match="more than 1,000 bytes decompressed"):
        unpacked(unpacking.gunzipped, path)
    with pytest.raises(DataError, match="more than 1,000 bytes decompressed"):
        unpacked(PAIRS, zip_of(tmp_path / "pairs.zip", {"deu.txt": "a\tb\n" * 251}))


def test_pairs_are_split_by_the_english_side(tmp_path):
    english = [f"sentence {number}" for number in range(300)]
    rows = "".join(f"{text}\tSatz {text}\tCC-BY\r\n" for text in english) + " \tleer\n"
    files = unpacked(PAIRS, zip_of(tmp_path / "pairs.zip", {"deu.txt": rows, "_about.txt": ""}))
    split = {name: content.decode().splitlines() for name, content in files.items()}
    for name, remainders in (("valid", {0}), ("test", {1}), ("train", set(range(2, 100)))):
        expected = [t for t in english if int(hashlib.sha256(t.encode()).hexdigest(), 16) % 100 in remainders]
        assert expected
        assert split[f"{name}.en"] == expected
        assert split[f"{name}.de"] == [f"Satz {text}" for text in expected]


def test_files_get_the_names_that_a_config_reads(tmp_path):
    path = tmp_path / "questions.train"
    path.write_bytes(b"NUM:dist How far ?\n")
    assert unpacked(unpacking.renamed({"questions.train": "train.txt"}), path) == {"train.txt": b"NUM:dist How far ?\n"}
    archive = zip_of(tmp_path / "S.zip", {"S/train.tsv": "a\t1\n", "S/dev.tsv": "b\t0\n", "S/other": "c"})
    names = {"S/train.tsv": "train.tsv", "S/dev.tsv": "dev.tsv"}
    assert unpacked(unpacking.members("S.zip", names), archive) == {"train.tsv": b"a\t1\n", "dev.tsv": b"b\t0\n"}
    with pytest.raises(DataError, match=r"has no file S/test\.tsv"):
        unpacked(unpacking.members("S.zip", {"S/test.tsv": "test.tsv"}), archive)


def test_lines_of_commands_and_actions_become_two_files(tmp_path):
    path = tmp_path / "tasks.txt"
    path.write_bytes(b"IN: jump twice OUT: I_JUMP I_JUMP\r\nIN: run OUT: I_RUN")
    unpack = unpacking.in_and_out({"tasks.txt": "train"})
    assert unpacked(unpack, path) == {"train.in": b"jump twice\nrun\n", "train.out": b"I_JUMP I_JUMP\nI_RUN\n"}
    for bad in (b"", b"IN: run OUT: ", b"run I_RUN"):
        path.write_bytes(b"IN: run OUT: I_RUN\n" + bad + b"\n")
        with pytest.raises(DataError, match=r"tasks\.txt, line 2: expected 'IN: command OUT: actions'"):
            unpacked(unpack, path)


def link(name):
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        ("../out.txt", "a path that leaves the folder"),
        ("a/../../out.txt", "a path that leaves the folder"),
        ("..\\out.txt", "a path that leaves the folder"),
        ("/etc/out.txt", "a path that leaves the folder"),
        ("C:/out.txt", "a path that leaves the folder"),
        (link("deu.txt"), "a link"),
    ],
    ids=str,
)
def test_unsafe_members_of_an_archive(tmp_path, member, problem):
    archive = zip_of(tmp_path / "pairs.zip", {member: "/etc/passwd", "other.txt": "a\tb\n"})
    with pytest.raises(DataError, match=f"is {problem}; delete it"):
        unpacked(PAIRS, archive)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        (None, "it is not a zip archive, or is damaged"),
        ({"fra.txt": "a\tb\n"}, r"has no file deu\.txt; it has fra\.txt"),
        ({"deu.txt": "a\tb\nc\n"}, "line 2: expected 2 columns between tabs, got 1"),
    ],
)
def test_archives_of_another_form(tmp_path, members, problem):
    path = tmp_path / "pairs.zip"
    path.write_bytes(b"<html>") if members is None else zip_of(path, members)
    with pytest.raises(DataError, match=problem):
        unpacked(PAIRS, path)


def test_progress_without_a_terminal(tmp_path, server, monkeypatch, capsys):
    monkeypatch.setattr("transformer_jax.host.terminal.SILENCE_SECONDS", 0.0)
    monkeypatch.setitem(
        CORPORA, "tiny", Corpus("", "", (of_big_file(server),), (), lambda files: [("big", iter([b"text\n"]))])
    )
    prepare_corpus("tiny", tmp_path)
    assert re.search(r"^downloading tiny: 0\.3 of 0\.3 MB, [\d.]+ MB/s$", capsys.readouterr().err, re.M)


@pytest.mark.parametrize("name", CORPORA)
def test_the_table(name):
    corpus = CORPORA[name]
    assert len({file.name for file in corpus.files}) == len(corpus.files)
    for file in corpus.files:
        assert re.fullmatch(r"https://[\w./-]+", file.url)
        assert (file.size is None) == (file.sha256 is None)
        assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)
    data = load_config_dict(f"{CONFIGS[0].parent / name}.py").data
    named = {re.sub(r"\[.*", "", split) for split in (data.train_split, data.valid_split, data.test_split) if split}
    if corpus.endings == ("npz",):
        assert named == {"train", "test"}
        assert corpus.outputs == ("mnist.npz",)
        return
    assert named <= set(corpus.prefixes)
    assert corpus.encoding == data.encoding
    if len(corpus.endings) == 2:
        assert (data.source_locale, data.target_locale) == corpus.endings
    else:
        assert corpus.endings == ({"documents": "txt", "labelled": "txt"}.get(data.format, data.format),)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_that_needs_a_folder_has_a_command_that_makes_it(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    from_files = load_config_dict(str(path)).data.source in ("text", "npz", "image_folder", "tfds_images")
    of_user = "fit = fit_to_data" in path.read_text()
    needs_folder = from_files and path.stem not in MADE_BY_HAND and not of_user
    assert (path.stem in NAMES) == needs_folder
    assert (f"transformer-jax prepare --dataset={path.stem} --data_dir=data\n" in docstring) == needs_folder
    if path.stem in CORPORA:
        assert f"--config.data.dir=data/{path.stem}\n" in docstring


def test_the_names_of_tfds_are_those_of_configs():
    assert set(TFDS_NAMES) <= {path.stem for path in CONFIGS}
