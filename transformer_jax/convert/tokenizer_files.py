"""Tokenizers of Hugging Face folders, in both directions.

Byte-level BPE is stored by both sides as `tokenizer.json`. A SentencePiece model becomes the three files of Marian for
a translation model, and a `tokenizer.json` with the same pieces for a language model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.data.tokenizers import Tokenizer, load_tokenizer
from transformer_jax.data.tokenizers.byte_bpe import ByteBPETokenizer, of_gpt2
from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.files import read_bytes

JSON = "tokenizer.json"
GPT2_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
MARIAN = ("source.spm", "target.spm", "vocab.json")
PIECES = ("spiece.model", "tokenizer.model")
_NEVER = -1e6
"""Log probability of a piece that text is never cut into, such as `</s>`: lower than any way around it."""


def read_folder_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a folder; None if it has no file of one. Raises CheckpointError if we cannot use it."""
    present = {path.name for path in folder.iterdir()}
    try:
        if present.issuperset(MARIAN):
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
    if isinstance(tokenizer, SentencePieceTokenizer):
        return "bpe" if tokenizer.is_bpe else "unigram"
    return "byte_bpe"


def _of_marian(folder: Path) -> Tokenizer:
    source, target, vocabulary = (read_bytes(folder / name) for name in MARIAN)
    tokenizer = load_tokenizer(source) if source == target else None
    ids = json.loads(vocabulary)
    if not isinstance(tokenizer, SentencePieceTokenizer) or ids != _pieces(tokenizer):
        raise DataError(
            "its source and target have different SentencePiece models, or vocab.json numbers their pieces anew; we "
            "read one model for both sides, with its own ids"
        )
    return tokenizer


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
    if isinstance(tokenizer, SentencePieceTokenizer) and encoder_decoder:
        settings |= {"tokenizer_class": "MarianTokenizer", "separate_vocabs": False}
        settings.pop("bos_token", None)
        files = dict.fromkeys(MARIAN[:2], tokenizer.model_bytes)
        files[MARIAN[2]] = _json(_pieces(tokenizer))
    elif isinstance(tokenizer, SentencePieceTokenizer):
        files = {JSON: _sentence_piece_json(tokenizer, named.values()), PIECES[0]: tokenizer.model_bytes}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    elif isinstance(tokenizer, ByteBPETokenizer):
        files = {JSON: tokenizer.model_bytes}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    else:
        raise ConfigError(
            f"{type(tokenizer).__name__}: transformers has no such tokenizer; we write those with "
            "data.tokenizer=unigram, bpe or byte_bpe. --without_tokenizer writes the model alone"
        )
    # Names of special tokens in a text are ordinary text, as here.
    settings["split_special_tokens"] = True
    return files | {"tokenizer_config.json": _json(settings), "special_tokens_map.json": _json(named)}


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
