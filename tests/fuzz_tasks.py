"""Wrong lines, images and files of data for models of every task: makers of cases for fuzz.py."""

from __future__ import annotations

import gzip
import io
import json
import math
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from fuzz_support import NASTY, WRONG, Case, Maker, Outcome
from kinds_support import KINDS
from PIL import Image
from run_support import argv

from transformer_jax.cli import predict as predict_command

TEXTS = {
    "classification": b"the cat saw dog\nthe owl\n\nthe dog saw\ta cat\n",
    "tagging": b"the cat saw\nowl\n\nthe  dog saw a cat\n",
    "span_qa": b"".join(
        json.dumps({"question": "who saw it ?", "context": text}).encode() + b"\n"
        for text in ("the cat saw dog", "owl", "the horse " * 9)
    ),
}
_ODD = [
    "\u00a0the\u3000cat",
    "\u2028",
    "\u0085the",
    "a\x0bb",
    "a\x0cb\x1cc",
    "e\u0301" * 9,
    "😀 the",
    "\ufeffthe",
    "\x00",
    "the " * 300,
]


# Lines.


def lines(case: Case) -> Outcome:
    """Predict labels, tags or answers of damaged lines."""
    kind = case.choice(list(TEXTS))
    given = _lines(case, kind)
    return _predicted(case, kind, given, [])


def _lines(case: Case, kind: str) -> bytes:
    if kind == "span_qa" and case.chance(0.5):
        asked = [case.json({"question": "who ?", "context": "the cat", "id": "1"}) for _ in range(3)]
        return b"".join(json.dumps(line).encode() + b"\n" for line in asked)
    if case.chance(0.4):
        return b"".join(f"{case.choice([*_ODD, 'the cat'])}\n".encode() for _ in range(4))
    return case.bytes(TEXTS[kind])


def _predicted(case: Case, kind: str, given: bytes, flags: list[str]) -> Outcome:
    """Predict, and check the lines of the output."""
    as_json = case.chance(0.5)
    words = ["predict", f"--checkpoint={case.bench.run(kind)}", *flags]
    words += ["--output=jsonl"] if as_json else []
    words += ["--probabilities"] if case.chance(0.3) else []
    if case.chance(0.3):
        (case.folder / "in").write_bytes(given)
        words, given_in = [*words, f"--input={case.folder / 'in'}"], b""
    else:
        given_in = given
    outcome = Outcome(words, given_in)
    if outcome.code in (0, 3):
        _check_lines(outcome, len(given.removesuffix(b"\n").split(b"\n")) if given else 0, as_json)
    return outcome


def _check_lines(outcome: Outcome, expected: int, as_json: bool) -> None:
    """Note a wrong number of lines, lines that are not JSON, numbers that are not finite, and silence."""
    written = outcome.out.decode().split("\n")[:-1]
    if len(written) != expected:
        outcome.faults.append(f"{expected} lines have {len(written)} lines of output")
    if outcome.code == 3 and not ("warning: " in outcome.err and ", line " in outcome.err):
        outcome.faults.append("exit code 3, and no line is named")
    for line in written if as_json else []:
        try:
            json.loads(line, parse_constant=_refuse)
        except ValueError as error:
            outcome.faults.append(f"is not JSON ({error}): {line}")
    if not as_json and re.search(r"\b(nan|inf)\b", outcome.out.decode()):
        outcome.faults.append(f"has numbers that are not finite: {outcome.out!r}")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def score(case: Case) -> Outcome:
    """Score damaged lines with a language model."""
    given = case.bytes(b"the cat saw dog\nowl\n\nthe dog\n") if case.chance(0.6) else f"{case.choice(_ODD)}\n".encode()
    flags = [
        *(["--output=jsonl"] if (as_json := case.chance(0.5)) else []),
        *(["--without_end"] if case.chance(0.3) else []),
    ]
    if case.chance(0.3):
        flags.append(
            f"--evaluation.{case.choice(['max_length', 'stride', 'tokens_per_batch'])}={case.choice([*NASTY, '8'])}"
        )
    outcome = Outcome(["score", f"--checkpoint={case.bench.run('language_model')}", *flags], given)
    if outcome.code in (0, 3):
        _check_lines(outcome, len(given.removesuffix(b"\n").split(b"\n")) if given else 0, as_json)
    return outcome


def fill(case: Case) -> Outcome:
    """Generate with models of corrupted text, from lines with marks in odd places."""
    kind = case.choice(["span_corruption", "span_corruption", "masked_lm", "language_model", "classification"])
    marks = ["<extra_id_0>", "<extra_id_1>", "<extra_id_99>", "<extra_id_0", "<mask>", "the cat", "", " ", "\t", *_ODD]
    given = "".join(f"{' '.join(case.choice(marks) for _ in range(case.source.randint(1, 4)))}\n" for _ in range(3))
    return Outcome(["generate", f"--checkpoint={case.bench.run(kind)}"], given.encode("utf-8", "surrogatepass"))


def resumed(case: Case) -> Outcome:
    """Predict into a file, be interrupted, damage the part that is done, and repeat the command."""
    source, target = case.folder / "in", case.folder / "out"
    source.write_bytes(b"the cat\n\nthe dog saw\n\xff\nowl\nthe cat saw a horse\nthe\n")
    words = [
        "predict",
        f"--checkpoint={case.bench.run('classification')}",
        f"--input={source}",
        f"--output_file={target}",
    ]
    calls: list[Any] = []

    def stop(writer: Any, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(writer, *arguments)

    whole = predict_command._Writer.lines
    with mock.patch.object(predict_command, "_CHUNK", 2):
        with mock.patch.object(predict_command._Writer, "lines", stop):
            first = Outcome(words)
        if first.code != 130:
            return first
        expected = case.bench.shared("predicted", lambda folder: _whole(words, folder, source.read_bytes()))
        companion, partial = target.with_name("out.partial.json"), target.with_name("out.partial")
        kind = case.source.randrange(5)
        if kind == 0:
            case.json_file(companion)
        elif kind == 1:
            companion.unlink()
        elif kind == 2:
            partial.write_bytes(case.bytes(partial.read_bytes()))
        elif kind == 3:
            case.choice([partial, companion, source]).write_bytes(b"")
        else:
            source.write_bytes(case.bytes(source.read_bytes()))
        changed = kind >= 3
        outcome = Outcome(words)
    if outcome.code in (0, 3) and not changed and target.read_bytes() != expected:
        outcome.faults.append(f"continued a damaged part without a word: {target.read_bytes()!r}")
    return outcome


def _whole(words: list[str], folder: Path, given: bytes) -> bytes:
    folder.mkdir(parents=True)
    (folder / "in").write_bytes(given)
    outcome = Outcome([*words[:2], f"--input={folder / 'in'}", f"--output_file={folder / 'out'}"])
    assert outcome.code == 3, outcome.err
    return (folder / "out").read_bytes()


# Files of data.

FORMATS = {"classification": "tsv", "tagging": "conll", "span_qa": "json", "language_model": "txt", "masked_lm": "txt"}
_JSONL = b"".join(json.dumps({"text": f"the cat {n}", "label": str(n % 2)}).encode() + b"\n" for n in range(9))
_CONLLU = b"# sent_id = 1\n" + b"".join(
    f"{n}\t{w}\t_\t{t}\t_\t_\t_\t_\t_\t_\n".encode() for n, (w, t) in enumerate([("the", "O"), ("cat", "B-X")], 1)
)


def _spoiled_data(case: Case, kind: str, data: bytes) -> bytes:
    if kind == "span_qa" and case.chance(0.6):
        return json.dumps(case.json(json.loads(data))).encode()
    if kind == "tagging" and case.chance(0.5):
        row = case.choice(
            [
                b"# id 5\tx",
                b"#\tO",
                b"# sent_id = 1",
                b"-DOCSTART- -X- O",
                b"cat",
                b"\tO",
                b"cat\t",
                b"cat\tI-",
                b"cat\t\xff",
            ]
        )
        rows = data.split(b"\n")
        rows.insert(case.source.randrange(len(rows)), row)
        return b"\n".join(rows)
    if case.chance(0.6):
        rows = data.split(b"\n")
        odd = case.choice([*_ODD, "a\tb\tc\td", "\t", "a", "text\tlabel", '"a\tb', "{}", "null", "[1]"])
        rows.insert(case.source.randrange(len(rows)), odd.encode())
        return b"\n".join(rows)
    return case.bytes(data)


def evaluated(case: Case) -> Outcome:
    """Evaluate a model of any task on a damaged file of any format."""
    kind = case.choice(list(FORMATS))
    corpus = case.bench.corpus(kind)
    name = f"x.{FORMATS[kind]}"
    data = (corpus / f"test.{FORMATS[kind]}").read_bytes()
    if kind == "tagging" and case.chance(0.3):
        name, data = "x.conllu", _CONLLU
    if kind == "classification" and case.chance(0.3):
        name, data = "x.jsonl", _JSONL
    data = _spoiled_data(case, kind, data)
    if case.chance(0.15):
        name, data = f"{name}.gz", case.bytes(gzip.compress(data))
    if case.chance(0.05):
        name = case.choice(["x", "x.csv", "x.npz", "x.json", "x.conll"])
    (case.folder / name).write_bytes(data)
    flags = [f"--input={case.folder / name}", "--name=fuzz", "--nogenerate"]
    if case.chance(0.2):
        flags.append(f"--columns={case.choice([*NASTY, '1,2', '2,1', 'text,label', '1,99', 'FORM,UPOS'])}")
    outcome = Outcome(["evaluate", f"--checkpoint={corpus / 'run'}", *flags])
    scores = corpus / "run" / "evaluation" / "fuzz.json"
    if outcome.code == 0 and scores.exists():
        _check_scores(outcome, scores)
    return outcome


def _check_scores(outcome: Outcome, file: Path) -> None:
    try:
        json.loads(file.read_text(), parse_constant=_refuse)
    except ValueError as error:
        outcome.faults.append(f"{file.name} is not JSON: {error}")


def trained(case: Case) -> Outcome:
    """Train one step on a corpus with a damaged file."""
    kind = case.choice(list(FORMATS))
    corpus = case.bench.corpus(kind)
    split = case.choice(["train", "valid"])
    _link_corpus(corpus, case.folder)
    file = case.folder / f"{split}.{FORMATS[kind]}"
    data = _spoiled_data(case, kind, file.read_bytes())
    file.unlink()
    file.write_bytes(data)
    return _one_step(case)


def _link_corpus(corpus: Path, folder: Path) -> None:
    for file in corpus.iterdir():
        if file.name != "run":
            (folder / file.name).symlink_to(file)


def _one_step(case: Case, *flags: str) -> Outcome:
    steps = [f"--config.training.num_train_steps={1}", "--config.optimizer.schedule=constant"]
    outcome = Outcome([*argv("train", case.folder), *steps, *flags])
    log = case.folder / "run" / "metrics.jsonl"
    if outcome.code == 0:
        if not log.exists():
            outcome.faults.append("trained without a log")
        elif any(not math.isfinite(json.loads(line).get("loss", 0.0)) for line in log.read_text().splitlines()):
            outcome.faults.append("logged a loss that is not finite, without an error")
    return outcome


# Images.


def _picture(case: Case) -> bytes:
    """Return a file of an image with any mode, size and format, perhaps damaged."""
    mode = case.choice(["L", "RGB", "RGBA", "LA", "P", "1", "I;16", "I", "F", "CMYK"])
    size = case.choice([(8, 8), (8, 8), (8, 8), (1, 1), (9, 7), (300, 2), (64, 64)])
    form = case.choice(["PNG", "PNG", "PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"])
    out = io.BytesIO()
    try:
        Image.new(mode, size, None if mode in ("I;16", "I", "F") else "white").save(out, form)
    except (OSError, ValueError, KeyError):  # this form has no such mode
        Image.new("L", size, 7).save(out, "PNG")
    data = out.getvalue()
    return case.bytes(data) if case.chance(0.3) else data


def images(case: Case) -> Outcome:
    """Predict labels of image files that are odd, and of names that are no such files."""
    run = case.bench.corpus("images")
    good = sorted((run / "test").rglob("*.png"))[0]
    rows: list[bytes] = []
    for number in range(case.source.randint(1, 3)):
        path = case.folder / f"{number}.{case.choice(['png', 'jpg', 'txt'])}"
        path.write_bytes(_picture(case))
        rows.append(str(path).encode())
    rows.append(case.choice([str(good).encode(), *(text.encode("utf-8", "surrogatepass") for text in NASTY)]))
    flags = case.choice([[], ["--data.resize=crop"], ["--data.resize=squash"], ["--data.resize=none"]])
    return _predicted(case, "images", b"".join(row.replace(b"\n", b"") + b"\n" for row in rows), flags)


def image_folders(case: Case) -> Outcome:
    """Train one step on a folder of images with odd files in it."""
    corpus = case.bench.corpus("images")
    for name in ("train", "valid", "test", "tiny.py"):
        if (corpus / name).is_dir():
            case.copy(corpus / name, name)
        else:
            (case.folder / name).write_bytes((corpus / name).read_bytes())
    label = case.folder / case.choice(["train", "valid"]) / case.choice(["dark", "light", "new", "."])
    label.mkdir(exist_ok=True)
    name = case.choice(
        ["a.png", "a.PNG", "a.jpg", "a.gif", "a.webp", ".a.png", "ü.png", "a b.png", "a.png.txt", "Thumbs.db"]
    )
    (label / name).write_bytes(_picture(case))
    flags = [f"--config.data.unfit_images={case.choice(['leave_out', 'error'])}"] if case.chance(0.4) else []
    flags += [f"--config.data.colours={case.choice(['grey', 'rgb'])}"] if case.chance(0.4) else []
    flags += [f"--config.data.resize={case.choice(['crop', 'squash'])}"] if case.chance(0.4) else []
    return _one_step(case, *flags)


def image_arrays(case: Case) -> Outcome:
    """Train one step on an .npz file with wrong arrays or damaged bytes."""
    corpus = case.bench.corpus("images")
    (case.folder / "tiny.py").write_bytes((corpus / "tiny.py").read_bytes())
    file = case.folder / "images.npz"
    arrays = {f"{split}_x": np.full((9, 8, 8, 1), 7, np.uint8) for split in ("train", "valid", "test")}
    arrays |= {f"{split}_y": np.arange(9) % 3 for split in ("train", "valid", "test")}
    if case.chance(0.7):
        name = case.choice(list(arrays))
        arrays[name] = _wrong_array(case, arrays[name])
    if case.chance(0.15):
        del arrays[case.choice(list(arrays))]
    np.savez(file, **arrays)
    if case.chance(0.4):
        file.write_bytes(case.bytes(file.read_bytes()))
    return _one_step(case, "--config.data.source=npz")


def _wrong_array(case: Case, array: np.ndarray) -> np.ndarray:
    """Return an array of another type or shape, or with other numbers."""
    kind = case.source.randrange(9)
    if kind == 0:
        return array.astype(
            case.choice([np.float32, np.float64, np.int64, np.bool_, np.complex64, "S3", "U3", "M8[s]"])
        )
    if kind == 1:
        return array[: case.source.randrange(len(array))]
    if kind == 2:
        return array.reshape(-1)
    if kind == 3:
        return array[None]
    if kind == 4:
        return np.array(case.choice([0, "x", None, b"x"]))
    if kind == 5:
        return np.asfortranarray(array)
    if kind == 6:
        return np.array(case.choice([WRONG[:3], [float("nan")] * 9, [-1] * 9, [2**62] * 9]))
    if kind == 7:
        return np.zeros(len(array), [("a", "i4"), ("b", "f8")])
    return array.astype(object)


MAKERS: tuple[Maker, ...] = (
    *(lines, lines, score, fill, resumed, evaluated, evaluated, trained),
    *(images, images, image_folders, image_arrays),
)
assert set(FORMATS) < set(KINDS)
