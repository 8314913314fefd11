"""The kinds of data that the generic configs read."""

from __future__ import annotations

from typing import NamedTuple


class CorpusKind(NamedTuple):
    """One kind.

    config: name of the generic config. formats: values of `data.format`, the most usual first. wanted: what its files
    are, for messages. sources: values of `data.source`.
    """

    config: str
    formats: tuple[str, ...]
    wanted: str
    sources: tuple[str, ...] = ("text",)


KINDS = {
    "classification": CorpusKind(
        "classify",
        ("tsv", "jsonl", "labelled"),
        "texts with labels: NAME.tsv, NAME.jsonl, or NAME.txt with a label in front of every text",
    ),
    "tagging": CorpusKind("tag", ("conll", "conllu"), "words with tags: NAME.conll or NAME.conllu"),
    "span_qa": CorpusKind("answer", ("squad",), "questions on contexts, in the form of SQuAD 1.1: NAME.json"),
    "translation": CorpusKind(
        "translate",
        ("parallel", "tsv", "jsonl"),
        "pairs of texts: NAME.LANGUAGE and NAME.OTHER with line i for line i, NAME.tsv or NAME.jsonl",
    ),
    "language_model": CorpusKind("text", ("documents",), "plain text: NAME.txt"),
    "images": CorpusKind(
        "pictures",
        (),
        "images in folders: LABEL/FILE.png, or train/LABEL/FILE.png",
        ("image_folder", "npz"),
    ),
}
"""By task."""

USES = {
    "tsv": ("columns between tabs", ("classify", "translate")),
    "jsonl": ("JSON lines", ("classify", "translate")),
    "labelled": ("plain text", ("classify", "text")),
    "documents": ("plain text", ("classify", "text")),
    "conll": ("words with tags", ("tag",)),
    "conllu": ("words with tags", ("tag",)),
    "squad": ("questions on contexts", ("answer",)),
    "parallel": ("pairs of texts", ("translate",)),
    "images": ("images", ("pictures",)),
}
"""The content of files of each format, and the generic configs that read them."""
