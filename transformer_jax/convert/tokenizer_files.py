"""Tokenizers of Hugging Face folders, in both directions.

Byte-level BPE is stored by both sides as `tokenizer.json`. A SentencePiece model becomes the three files of Marian for
a translation model, and a `tokenizer.json` with the same pieces for a language model. Separate tokenizers of source and
target become the four files of a Marian with `separate_vocabs`. WordPiece has BERT's `vocab.txt`. T5's `spiece.model`
has no sentinels; other files name them and other added tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.data.tokenizers import AddedTokens, Tokenizer, TokenizerPair, plain
from transformer_jax.data.tokenizers.base import SPACE
from transformer_jax.data.tokenizers.byte_bpe import ByteBPETokenizer, of_gpt2
from transformer_jax.data.tokenizers.library import LibraryTokenizer, is_word_piece
from transformer_jax.data.tokenizers.numbered_pieces import NumberedPieces
from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer
from transformer_jax.data.tokenizers.word_piece import VOCABULARY, WordPieceTokenizer, of_files
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.readers import parse_json, read_bytes

JSON = "tokenizer.json"
GPT2_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
MARIAN = ("source.spm", "target.spm", "vocab.json")
TARGET_VOCABULARY = "target_vocab.json"
SETTINGS = "tokenizer_config.json"
ADDED = "added_tokens.json"
PIECES = ("spiece.model", "tokenizer.model")
_T5_SENTINELS = 100
_SENTINEL = re.compile(r"<extra_id_\d+>")
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
                return _with_added_tokens(SentencePieceTokenizer(read_bytes(folder / name)), folder)
        if VOCABULARY in present or (JSON in present and is_word_piece(read_bytes(folder / JSON))):
            return of_files(folder)
        if JSON in present:
            return ByteBPETokenizer(read_bytes(folder / JSON))
        for pair in GPT2_PAIRS:
            if present.issuperset(pair):
                return of_gpt2(folder, pair)
    except (DataError, OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder}: the files of its tokenizer are damaged: {error!r}") from error
    return None


def kind_of(tokenizer: Tokenizer) -> str:
    """Return the value of `data.tokenizer` for a tokenizer that was read."""
    tokenizer = plain(tokenizer.target if isinstance(tokenizer, TokenizerPair) else tokenizer)
    if isinstance(tokenizer, WordPieceTokenizer):
        return "wordpiece" if tokenizer.lower_case else "wordpiece_cased"
    if isinstance(tokenizer, SentencePieceTokenizer | NumberedPieces):
        return "bpe" if tokenizer.is_bpe else "unigram"
    return "byte_bpe"


def _with_added_tokens(tokenizer: SentencePieceTokenizer, folder: Path) -> Tokenizer:
    """Return the tokenizer with the tokens that the other files add behind its pieces.

    T5's tokenizer has 100 sentinels if no file says how many.
    """
    size, settings = tokenizer.vocab_size, _object(folder / SETTINGS)
    names = {int(id): token["content"] for id, token in settings.get("added_tokens_decoder", {}).items()}
    names |= {token["id"]: token["content"] for token in _object(folder / JSON).get("added_tokens", [])}
    names |= {id: name for name, id in _object(folder / ADDED).items()}
    kind = settings.get("tokenizer_class") or _object(folder / "config.json").get("model_type", "")
    if kind.lower().startswith(("t5", "mt5", "umt5")) and not any(map(_SENTINEL.fullmatch, names.values())):
        listed = [name for name in settings.get("additional_special_tokens") or [] if _SENTINEL.fullmatch(name)]
        count = settings.get("extra_ids", len(listed) or _T5_SENTINELS)
        names |= {size + count - 1 - k: f"<extra_id_{k}>" for k in range(count)}
    added = [names[id] for id in sorted(names) if id >= size]
    if any(size + place not in names for place in range(len(added))):
        raise DataError(f"the ids of its added tokens do not follow those of its {size} pieces: {sorted(names)}")
    return AddedTokens(tokenizer, added) if added else tokenizer


def _object(file: Path) -> dict[str, Any]:
    """Return the object of a JSON file; an empty one if there is no such file."""
    values = parse_json(read_bytes(file)) if file.exists() else {}
    if not isinstance(values, dict):
        raise DataError(f"{file.name}: holds no object")
    return values


def _of_marian(folder: Path) -> Tokenizer:
    settings = _object(folder / SETTINGS)
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
    own = SentencePieceTokenizer(model)
    return own if parse_json(vocabulary) == _pieces(own) else numbered


def _pieces(tokenizer: Tokenizer) -> dict[str, int]:
    return {token: id for id, token in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}


def tokenizer_files(tokenizer: Tokenizer, encoder_decoder: bool, max_length: int) -> dict[str, bytes]:
    """Return the files with which transformers cuts a text into the same ids, by name.

    Args:
      encoder_decoder: write Marian's files, whose tokenizer ends a text with end-of-sequence.
      max_length: positions of the model.
    Raises: ConfigError if transformers has no such tokenizer.
    """
    named, own = _special_tokens(tokenizer), plain(tokenizer)
    added = dict(enumerate(tokenizer.names, own.vocab_size)) if isinstance(tokenizer, AddedTokens) else {}
    settings: dict[str, Any] = {**named, "model_max_length": max_length, "clean_up_tokenization_spaces": False}
    if encoder_decoder and (marian := _marian_files(tokenizer)):
        files = marian
        settings |= {"tokenizer_class": "MarianTokenizer", "separate_vocabs": TARGET_VOCABULARY in files}
        settings.pop("bos_token", None)
    elif isinstance(own, SentencePieceTokenizer) and _is_t5(own):
        files = {JSON: _t5_json(own, named.values(), added.values()), PIECES[0]: own.model_bytes}
        settings |= {"tokenizer_class": "T5Tokenizer", "extra_ids": len(tokenizer.special_ids.sentinels)}
        _check_t5(tokenizer)
    elif isinstance(own, SentencePieceTokenizer):
        special = {**dict.fromkeys(named.values()), **dict.fromkeys(added.values())}
        model = _sentence_piece_json(own, special)
        files = {JSON: _framed(model, tokenizer), PIECES[0]: own.model_bytes}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    elif isinstance(own, WordPieceTokenizer):
        files = {JSON: _with_special_tokens(own, added), VOCABULARY: "\n".join([*_pieces(tokenizer), ""]).encode()}
        settings |= {"tokenizer_class": "BertTokenizer", **own.settings}
    elif isinstance(own, ByteBPETokenizer):
        files = {JSON: _framed(_with_special_tokens(own, added), tokenizer)}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    else:
        raise ConfigError(
            f"{type(own).__name__}: transformers has no such tokenizer; we write those with "
            "data.tokenizer=unigram, bpe, byte_bpe, wordpiece or wordpiece_cased, and separate ones of unigram or bpe "
            "for a translation model. --without_tokenizer writes the model alone"
        )
    # Names of special tokens in a text are ordinary text, as here, unless users write the names of masks or sentinels.
    ids = tokenizer.special_ids
    settings["split_special_tokens"] = ids.mask is None and not ids.sentinels
    if added:
        settings["added_tokens_decoder"] = {str(id): _added_token(name) for id, name in added.items()}
    if ids.sentinels:
        settings["additional_special_tokens"] = tokenizer.tokens(ids.sentinels)
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
    roles = {"pad": ids.pad, "eos": ids.eos, "unk": ids.unk, "bos": ids.bos, "mask": ids.mask}
    if ids.mask is not None:
        roles |= {"cls": ids.start_of_text, "sep": ids.end_of_text}
    if isinstance(plain(tokenizer), WordPieceTokenizer):  # BERT's tokenizer has no names for these two
        del roles["eos"], roles["bos"]
        roles |= {"cls": ids.cls, "sep": ids.sep}
    return {f"{role}_token": tokenizer.tokens([id])[0] for role, id in roles.items() if id is not None}


def _added_token(name: str) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": name, **flags, "special": True}


def _is_t5(tokenizer: SentencePieceTokenizer) -> bool:
    """Return whether transformers reads the model as T5's: unigram, with normalised text and T5's ids."""
    ids = tokenizer.special_ids
    return tokenizer.normalises and not tokenizer.is_bpe and (ids.pad, ids.eos, ids.unk) == (0, 1, 2)


def _check_t5(tokenizer: Tokenizer) -> None:
    """Raise ConfigError if the added tokens are not those of T5's tokenizer: sentinels with descending ids."""
    sentinels, own = tokenizer.special_ids.sentinels, plain(tokenizer).vocab_size
    if sentinels != tuple(range(tokenizer.vocab_size - 1, own - 1, -1)):
        names = ", ".join(tokenizer.tokens(range(own, tokenizer.vocab_size)))
        raise ConfigError(
            "the SentencePiece model normalises text, which we write as T5's tokenizer alone; that has no added tokens "
            f"but <extra_id_0> and so on with descending ids, and this one has {names}"
        )


def _with_special_tokens(tokenizer: LibraryTokenizer, added: Mapping[int, str]) -> bytes:
    """Return a model of the library `tokenizers` with more special tokens."""
    if not added:
        return tokenizer.model_bytes
    values = parse_json(tokenizer.model_bytes)
    values["added_tokens"] += [{"id": id, **_added_token(name)} for id, name in added.items()]
    return json.dumps(values, ensure_ascii=False).encode("utf-8")


def _framed(model: bytes, tokenizer: Tokenizer) -> bytes:
    """Return a model of the library that puts the tokens around one or two texts that the tokenizer's task puts there.

    With a mask, as in BART, these are start and end; with sentinels alone, as in T5, it is the end. A model that has
    such a rule keeps it, and other tokenizers get none.
    """
    from tokenizers import Tokenizer as LibraryModel
    from tokenizers import processors

    ids, result = tokenizer.special_ids, LibraryModel.from_str(model.decode("utf-8"))
    has_rule = not isinstance(result.post_processor, processors.ByteLevel | None)
    if has_rule or (ids.mask is None and not ids.sentinels):
        return model
    start = [] if ids.mask is None or ids.start_of_text is None else [ids.start_of_text]
    frame = [*start, ids.required("eos") if ids.end_of_text is None else ids.end_of_text]
    *first, last = tokenizer.tokens(frame)
    single, named = [*first, "$A", last], list(zip([*first, last], frame, strict=True))
    result.post_processor = processors.TemplateProcessing(
        single=single, pair=[*single, "$B", last], special_tokens=named
    )
    return result.to_str().encode("utf-8")


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


def _t5_json(tokenizer: SentencePieceTokenizer, special: Iterable[str], added: Iterable[str]) -> bytes:
    """Return the pieces of T5's tokenizer as a model of the library `tokenizers`, which normalises text as it does."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    ids = tokenizer.special_ids
    pieces = [(piece, 0.0 if score is None else score) for piece, score in tokenizer.scored_pieces()]
    result = Tokenizer(models.Unigram(pieces, ids.required("unk"), byte_fallback=False))
    if rules := tokenizer.character_rules:
        result.normalizer = normalizers.Precompiled(rules)
    # The library would find `</s>` in a text too; a cut before `>` hides it.
    names = "|".join(re.escape(name.removesuffix(">")) for name in special)
    hidden = pre_tokenizers.Split(Regex(f"(?<={names})>"), "merged_with_next")
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, "always"), hidden]
    )
    result.decoder = decoders.Metaspace(SPACE, "always")
    end = tokenizer.tokens([ids.required("eos")])[0]
    result.post_processor = processors.TemplateProcessing(
        single=["$A", end], pair=["$A", end, "$B", end], special_tokens=[(end, ids.required("eos"))]
    )
    result.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in (*special, *added)])
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


EXPECTED = f"{JSON}, {VOCABULARY}, {' with '.join(GPT2_PAIRS[0])}, {', '.join(MARIAN)}, or {PIECES[0]}"
"""The files that we read, for messages."""
