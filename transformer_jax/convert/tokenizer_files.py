"""Tokenizers of Hugging Face folders, in both directions.

Byte-level BPE is stored by both sides as `tokenizer.json`. A SentencePiece model becomes the three files of Marian for
a translation model, and a `tokenizer.json` with the same pieces for a language model. Separate tokenizers of source and
target become the four files of a Marian with `separate_vocabs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.data.tokenizers import Tokenizer, TokenizerPair
from transformer_jax.data.tokenizers.byte_bpe import ByteBPETokenizer, of_gpt2
from transformer_jax.data.tokenizers.numbered_pieces import NumberedPieces
from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.files import read_bytes

JSON = "tokenizer.json"
GPT2_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
MARIAN = ("source.spm", "target.spm", "vocab.json")
TARGET_VOCABULARY = "target_vocab.json"
SETTINGS = "tokenizer_config.json"
PIECES = ("spiece.model", "tokenizer.model")
_NEVER = -1e6
"""Log probability of a piece that text is never cut into, such as `</s>`: lower than any way around it."""


def read_folder_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a folder; None if it has no file of one. Raises CheckpointError if we cannot use it."""
    present = {path.name for path in folder.iterdir()}
    try:
        if present.intersection(MARIAN[:2]):
            return _of_marian(folder)
        for name in PIECES:
            if name in present:
                return SentencePieceTokenizer(read_bytes(folder / name))
        if JSON in present:
            return ByteBPETokenizer(read_bytes(folder / JSON))
        for pair in GPT2_PAIRS:
            if present.issuperset(pair):
                return of_gpt2(folder, pair)
    except (DataError, OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: {error}") from error
    return None


def kind_of(tokenizer: Tokenizer) -> str:
    """Return the value of `data.tokenizer` for a tokenizer that was read."""
    if isinstance(tokenizer, TokenizerPair):
        tokenizer = tokenizer.target
    if isinstance(tokenizer, SentencePieceTokenizer | NumberedPieces):
        return "bpe" if tokenizer.is_bpe else "unigram"
    return "byte_bpe"


def _of_marian(folder: Path) -> Tokenizer:
    settings = json.loads(read_bytes(folder / SETTINGS)) if (folder / SETTINGS).exists() else {}
    if not isinstance(settings, dict):
        raise DataError(f"{SETTINGS}: holds no object")
    separate = settings.get("separate_vocabs", False)
    names = (*MARIAN, TARGET_VOCABULARY) if separate else MARIAN
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(f"its Marian tokenizer lacks {' and '.join(missing)}; expected {', '.join(names)}")
    source, target, vocabulary = (read_bytes(folder / name) for name in MARIAN)
    if separate:
        target_vocabulary = read_bytes(folder / TARGET_VOCABULARY)
        return TokenizerPair(_with_ids(vocabulary, source), _with_ids(target_vocabulary, target))
    return _with_ids(vocabulary, target, source)


def _with_ids(vocabulary: bytes, model: bytes, source_model: bytes | None = None) -> Tokenizer:
    """Return the tokenizer of a vocabulary and a SentencePiece model, or one for each side.

    It is the plain tokenizer of the model if the vocabulary has the model's own ids.
    """
    numbered = NumberedPieces.pack(vocabulary, model, model if source_model is None else source_model)
    if numbered.source is not numbered:
        return numbered
    plain = SentencePieceTokenizer(model)
    return plain if json.loads(vocabulary) == _pieces(plain) else numbered


def _pieces(tokenizer: Tokenizer) -> dict[str, int]:
    return {token: id for id, token in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}


def tokenizer_files(tokenizer: Tokenizer, encoder_decoder: bool, max_length: int) -> dict[str, bytes]:
    """Return the files with which transformers cuts a text into the same ids, by name.

    Args:
      encoder_decoder: write Marian's files, whose tokenizer ends a text with end-of-sequence.
      max_length: positions of the model.
    Raises: ConfigError if transformers has no such tokenizer.
    """
    named = _special_tokens(tokenizer)
    settings: dict[str, Any] = {**named, "model_max_length": max_length, "clean_up_tokenization_spaces": False}
    if encoder_decoder and (marian := _marian_files(tokenizer)):
        files = marian
        settings |= {"tokenizer_class": "MarianTokenizer", "separate_vocabs": TARGET_VOCABULARY in files}
        settings.pop("bos_token", None)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        files = {JSON: _sentence_piece_json(tokenizer, named.values()), PIECES[0]: tokenizer.model_bytes}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    elif isinstance(tokenizer, ByteBPETokenizer):
        files = {JSON: tokenizer.model_bytes}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    else:
        raise ConfigError(
            f"{type(tokenizer).__name__}: transformers has no such tokenizer; we write those with "
            "data.tokenizer=unigram, bpe or byte_bpe, and separate ones of unigram or bpe for a translation model. "
            "--without_tokenizer writes the model alone"
        )
    # Names of special tokens in a text are ordinary text, as here.
    settings["split_special_tokens"] = True
    return files | {SETTINGS: _json(settings), "special_tokens_map.json": _json(named)}


def _marian_files(tokenizer: Tokenizer) -> dict[str, bytes] | None:
    """Return the files of Marian's tokenizer but for its settings; None if it cannot be said with them."""
    if isinstance(tokenizer, TokenizerPair):
        source, target = _marian_files(tokenizer.source), _marian_files(tokenizer.target)
        if source is None or target is None:
            return None
        own = {"source.spm": source["source.spm"], "vocab.json": source["vocab.json"]}
        return own | {"target.spm": target["target.spm"], TARGET_VOCABULARY: target["vocab.json"]}
    if isinstance(tokenizer, NumberedPieces):
        models = (tokenizer.source_model, tokenizer.target_model)
        return dict(zip(MARIAN, (*models, tokenizer.vocabulary), strict=True))
    if isinstance(tokenizer, SentencePieceTokenizer):
        models = (tokenizer.model_bytes, tokenizer.model_bytes)
        return dict(zip(MARIAN, (*models, _json(_pieces(tokenizer))), strict=True))
    return None


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    ids = tokenizer.special_ids
    roles = {"pad": ids.pad, "eos": ids.eos, "unk": ids.unk, "bos": ids.bos}
    return {f"{role}_token": tokenizer.tokens([id])[0] for role, id in roles.items() if id is not None}


def _sentence_piece_json(tokenizer: SentencePieceTokenizer, special: Iterable[str]) -> bytes:
    """Return the pieces of a SentencePiece model as a model of the library `tokenizers`.

    Args:
      special: names of the special tokens.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    unk = tokenizer.special_ids.required("unk")
    pieces = [(piece, _NEVER if score is None else score) for piece, score in tokenizer.scored_pieces()]
    if tokenizer.is_bpe:
        ids = {piece: id for id, (piece, _) in enumerate(pieces)}
        model = models.BPE(ids, _merges(pieces), unk_token=pieces[unk][0], fuse_unk=True, byte_fallback=True)
    else:
        model = models.Unigram(pieces, unk, byte_fallback=True)
    result = Tokenizer(model)
    # SentencePiece puts a space before every text, even before one that begins with a space.
    result.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    # The library would find `</s>` and `<0x41>` in a text too; a cut after `<` hides them.
    names = "|".join([*(re.escape(name.removeprefix("<")) for name in special), "0x[0-9A-F]{2}>"])
    result.pre_tokenizer = pre_tokenizers.Split(Regex(f"<(?={names})"), "merged_with_previous")
    result.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    result.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    return result.to_str().encode("utf-8")


def _merges(pieces: Sequence[tuple[str, float]]) -> list[tuple[str, str]]:
    """Return the merges of a BPE model, which SentencePiece stores only as their results, best first.

    SentencePiece merges the two neighbours whose joint piece has the highest score, however it was made in training. So
    every way to make a piece of two others is a merge, of the rank of the piece.
    """
    scores = {piece: score for piece, score in pieces if score > _NEVER}
    found = [
        (-score, piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return [(left, right) for _, left, right in sorted(found, key=lambda merge: merge[0])]


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


EXPECTED = f"{JSON}, {' with '.join(GPT2_PAIRS[0])}, {', '.join(MARIAN)}, or {PIECES[0]}"
"""The files that we read, for messages."""
