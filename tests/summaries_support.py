"""Small folders of BART and T5 with their settings for summaries; NumPy draws the weights, so torch is not needed.

`golden/summaries/make.py` stores the outputs of transformers for `SOURCES` and for `TEXTS`.
"""

import dataclasses
import json
import math
import pathlib

import numpy as np
from published_support import config_of, reduced
from sentencepiece import sentencepiece_model_pb2

from transformer_jax.checkpoints.checksums import by_path
from transformer_jax.config import TaskConfig
from transformer_jax.convert import folder_config, folder_tensors
from transformer_jax.convert.folder import _shapes
from transformer_jax.convert.tensor_files import write_tensors

STORED = pathlib.Path(__file__).parent / "golden" / "summaries" / "expected.json"
NAMES = {"bart": "bart-large-cnn", "t5": "t5-small"}
SEEDS = {"bart": 1, "t5": 1}
WORDS = "the of and to in a is that for it as was with be by on not he his but at are this have from".split()  # noqa: SIM905
PIECES = ["<pad>", "</s>", "<unk>", *(f"\u2581{word}" for word in WORDS), "\u2581", *"abcdefghijklmnopqrstuvwxyz:."]
SENTINELS = 2
END_BIAS, GAINS = 4.0, {"bart": 2.0, "t5": 1.5}
VOCABULARY = len(PIECES) + SENTINELS
UNWRITTEN = {"bart": [0, 1, 3], "t5": [0, 2, *range(len(PIECES), VOCABULARY)]}
"""Special tokens other than end-of-sequence: their embedding is 0, so that a model seldom writes them."""
LIMITS = {"max_length": 20, "min_length": 8}
"""In place of the published limits, which are about seven times as large."""


def sources(count=20):
    """Return ids of random sources, with end-of-sequence; those of BART and T5 alike are ids of text."""
    rng = np.random.default_rng(0)
    return [rng.integers(3, len(PIECES), rng.integers(5, 16)).tolist() for _ in range(count)]


def texts(count=20):
    rng = np.random.default_rng(1)
    return [" ".join(rng.choice(WORDS, rng.integers(4, 14))) for _ in range(count)]


def config_of_folder(family):
    """Return the published config.json with small sizes and limits; all else is as published."""
    config = reduced(config_of(NAMES[family])) | {
        "vocab_size": VOCABULARY,
        "n_positions": 64,
        "max_position_embeddings": 64,
    }
    ids = {name: value for name, value in config_of(NAMES[family]).items() if name.endswith("_token_id")}
    entry = config["task_specific_params"]["summarization"] | LIMITS
    config |= ids | {"task_specific_params": {**config["task_specific_params"], "summarization": entry}}
    return config | (LIMITS if family == "bart" else {})


def write_summary_folder(path, family):
    """Write config.json, tensors and, for T5, a SentencePiece tokenizer."""
    config = config_of_folder(family)
    table = folder_config.possible_classes(config, "x")[0]
    ours, _ = folder_config.read_model_config(table, config, "x")
    ours = dataclasses.replace(ours, output_bias=family == "bart")
    rng, leaves = np.random.default_rng(SEEDS[family]), {}
    for name, leaf in by_path(_shapes(ours, TaskConfig(name="text_to_text"))).items():
        leaves[name] = drawn(name, leaf.shape, family, rng)
    path.mkdir()
    write_tensors(path, folder_tensors.outgoing(table, ours, leaves))
    (path / "config.json").write_text(json.dumps(config))
    if family == "t5":
        (path / "spiece.model").write_bytes(sentence_piece_model())
        settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": SENTINELS}
        (path / "tokenizer_config.json").write_text(json.dumps(settings))


def drawn(name, shape, family, rng):
    """Return large weights, so that outputs depend on their source."""
    x = rng.standard_normal(shape)
    if name.endswith("scale"):
        x = 1.0 + 0.2 * x
    elif name == "output/bias":
        x[2] = END_BIAS
    elif name.endswith("bias"):
        x *= 0.3
    elif name == "embedding/embedding":
        x[UNWRITTEN[family]] = 0.0
    elif not name.endswith("embedding"):
        x *= GAINS[family] / math.sqrt(math.prod(shape[1:-1]))
    return x.astype(np.float32)


def sentence_piece_model():
    """Return a unigram model without training: words are likelier than their letters."""
    model = sentencepiece_model_pb2.ModelProto()
    kinds = {"<pad>": 3, "</s>": 3, "<unk>": 2}
    for number, text in enumerate(PIECES):
        score = 0.0 if text in kinds else -1.0 - 0.01 * number
        model.pieces.add(piece=text, score=score, type=kinds.get(text, 1))
    model.trainer_spec.model_type = 1
    for name, number in (("pad", 0), ("eos", 1), ("unk", 2), ("bos", -1)):
        setattr(model.trainer_spec, f"{name}_id", number)
    model.trainer_spec.vocab_size = len(PIECES)
    model.normalizer_spec.name = "identity"
    return model.SerializeToString()


def stored():
    return json.loads(STORED.read_text(encoding="utf-8"))
