"""Small files as a user has them, one folder per kind of data."""

import json

import numpy as np
import pytest

from transformer_jax.config_file import read_config
from transformer_jax.errors import ConfigError, DataError

KIND = ("fine", "good", "great", "lovely"), ("bad", "dull", "awful", "boring")
NAMES = ("Ana", "Luis", "Eva"), ("Madrid", "Lima", "Quito")
SUBJECTS = {"the man": "der Mann", "the woman": "die Frau", "the child": "das Kind", "the dog": "der Hund"}
VERBS = {"sleeps": "schläft", "eats": "isst", "sings": "singt", "runs": "läuft", "reads": "liest"}


def fitted(name, folder, **given):
    """Return a generic config that is fitted to the files of a folder. given: flags, with `__` for the dot."""
    return read_config(name, {"data.dir": str(folder), **{k.replace("__", "."): v for k, v in given.items()}})


def refusal(name, folder, **given):
    """Return why a config refuses the files of a folder, which is called DIR."""
    with pytest.raises((DataError, ConfigError)) as caught:
        fitted(name, folder, **given)
    return str(caught.value).replace(str(folder), "DIR")


def reviews(count, start=0):
    """Yield texts of different lengths and their labels, in turn."""
    for i in range(start, start + count):
        words = KIND[i % 2]
        middle = " ".join(["it goes on"] * (i % 4))
        yield f"film {i} is {words[i % 4]} and {words[(i // 4) % 4]} {middle}".strip(), ("positive", "negative")[i % 2]


def write_reviews(path, count=120, start=0, names=("id", "review", "sentiment")):
    rows = [f"{i}\t{text}\t{label}" for i, (text, label) in enumerate(reviews(count, start))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(([] if names is None else ["\t".join(names)]) + rows) + "\n")


def write_names(path, count=60):
    blocks = []
    for i in range(count):
        person, place = NAMES[0][i % 3], NAMES[1][i // 3 % 3]
        blocks.append(f"{person} B-PER\nvive O\nen O\n{place} B-LOC\n. O\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(blocks))


def write_questions(path, count=40):
    paragraphs = []
    for i in range(count):
        person, place = NAMES[0][i % 3], NAMES[1][i // 3 % 3]
        context = f"{person} was born in {place} in {1800 + i}."
        answer = {"text": place, "answer_start": context.index(place)}
        question = {"id": str(i), "question": f"Where was {person} born?", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [question]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


def pairs():
    for i, (source, target) in enumerate(SUBJECTS.items()):
        for j, (verb, other) in enumerate(VERBS.items()):
            for k in range(6):
                yield f"{source} {verb} {i + j + k} times", f"{target} {other} {i + j + k} mal"


def write_pairs(path, languages=("en", "de")):
    """Write PATH.en and PATH.de."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for side, language in enumerate(languages):
        path.with_name(f"{path.name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs()))


def write_plays(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{a}. {b}.\n" for a, b in pairs()))


def write_pictures(folder, count=12, size=8):
    """Write images of two labels: bright on the left, or on the right."""
    from PIL import Image

    for i in range(count):
        pixels = np.full((size, size), i, np.uint8)
        pixels[:, size // 2 * (i % 2) :][:, : size // 2] = 200
        path = folder / ("left", "right")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
