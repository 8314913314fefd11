"""The files with which transformers cuts a text into the ids that a model was trained with.

WordPiece and byte-level BPE are stored by both sides as `tokenizer.json`. A SentencePiece model becomes the files of
Marian for a MarianMT model, and else a `tokenizer.json` with the same pieces (`sentence_piece_model`). Whatever the
kind, the tokens around a text are those of the model's task.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from transformer_jax.convert.sentence_piece_model import as_library_model, differing_text, with_exact_scores
from transformer_jax.convert.tokenizer_files import (
    JSON,
    MARIAN,
    PIECES,
    SETTINGS,
    SPECIAL,
    TARGET_VOCABULARY,
    pieces_of,
)
from transformer_jax.data.tokenizers import AddedTokens, Frame, Tokenizer, TokenizerPair, plain
from transformer_jax.data.tokenizers.byte_bpe import ByteBPETokenizer
from transformer_jax.data.tokenizers.library import with_more_tokens
from transformer_jax.data.tokenizers.numbered_pieces import NumberedPieces
from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer
from transformer_jax.data.tokenizers.word_piece import VOCABULARY, WordPieceTokenizer
from transformer_jax.errors import ConfigError

_GENERAL = "PreTrainedTokenizerFast"
"""The class that takes `tokenizer.json` as it is. Those of single models make most of it anew."""
_WITHOUT = "--without_tokenizer writes the model alone"


def tokenizer_files(
    tokenizer: Tokenizer, max_length: int, frame: Frame, *, marian: bool = False, token_types: int = 0
) -> dict[str, bytes]:
    """Return the files with which transformers cuts a text into the same ids, by name.

    Args:
      max_length: positions of the model.
      frame: the tokens around a text in the batches of the model's task.
      marian: write Marian's files, whose tokenizer ends a text with end-of-sequence.
      token_types: of the model; with 2 or more, the tokens of a second text have type 1.
    Raises: ConfigError if transformers has no such tokenizer.
    """
    named, own = _special_tokens(tokenizer, frame), plain(tokenizer)
    added = dict(enumerate(tokenizer.names, own.vocab_size)) if isinstance(tokenizer, AddedTokens) else {}
    settings: dict[str, Any] = {**named, "model_max_length": max_length, "clean_up_tokenization_spaces": False}
    ids = tokenizer.special_ids
    # Names of special tokens in a text are ordinary text, as here, unless users write the names of masks or sentinels.
    found = own.symbol_ids if isinstance(own, SentencePieceTokenizer) else frozenset()
    named_in_text = not found.issuperset([id for id in (ids.mask, *ids.sentinels) if id is not None])
    typed = token_types > 1
    ends = frame == Frame(end=tokenizer.source.special_ids.eos)
    of_marian = marian and ends and (not added or isinstance(own, NumberedPieces))
    if of_marian and (files := _marian_files(own)) is not None:
        settings |= {"tokenizer_class": "MarianTokenizer", "separate_vocabs": TARGET_VOCABULARY in files}
        settings.pop("bos_token", None)
    elif isinstance(own, SentencePieceTokenizer):
        pieces = [name for name in named.values() if name not in added.values()]
        special = dict.fromkeys([*(pieces if named_in_text else ()), *added.values()])  # in the order of their ids
        model = _framed(_sentence_piece_json(own, named, special), tokenizer, frame, typed)
        files = {JSON: with_exact_scores(model)}
        files[PIECES[0]] = own.model_bytes
        settings["tokenizer_class"] = _GENERAL
    elif isinstance(own, WordPieceTokenizer):
        model = _framed(_with_special_tokens(own, added), tokenizer, frame, typed)
        files = {JSON: model}
        if not own.id_problem:  # in this file the number of a line is an id
            files[VOCABULARY] = "\n".join([*pieces_of(tokenizer), ""]).encode()
        as_bert = own.is_of_bert and frame[:2] == (ids.cls, ids.sep) and typed
        settings |= {"tokenizer_class": "BertTokenizer" if as_bert else _GENERAL, **own.settings}
    elif isinstance(own, ByteBPETokenizer):
        files = {JSON: _framed(_with_special_tokens(own, added), tokenizer, frame, typed)}
        settings["tokenizer_class"] = _GENERAL
    else:
        raise ConfigError(
            f"{type(own).__name__}: transformers has no such tokenizer; it has those of "
            "data.tokenizer=unigram, bpe, byte_bpe, wordpiece or wordpiece_cased, and separate ones of unigram or bpe "
            f"for a translation model. {_WITHOUT}"
        )
    if settings["tokenizer_class"] == _GENERAL:
        settings["model_input_names"] = ["input_ids", *(["token_type_ids"] if typed else []), "attention_mask"]
    settings["split_special_tokens"] = not named_in_text
    if added:
        settings["added_tokens_decoder"] = {str(id): _added_token(name) for id, name in added.items()}
    if ids.sentinels:
        settings["additional_special_tokens"] = tokenizer.tokens(ids.sentinels)
    return files | {SETTINGS: _json(settings), SPECIAL: _json(named)}


def _marian_files(tokenizer: Tokenizer) -> dict[str, bytes] | None:
    """Return the files of Marian's tokenizer, without its settings; None if they cannot express this tokenizer."""
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
        return dict(zip(MARIAN, (*models, _json(pieces_of(tokenizer))), strict=True))
    return None


def _special_tokens(tokenizer: Tokenizer, frame: Frame) -> dict[str, str]:
    ids = tokenizer.special_ids
    roles = {"pad": ids.pad, "eos": ids.eos, "unk": ids.unk, "bos": ids.bos, "mask": ids.mask}
    if ids.mask is not None:
        roles |= {"cls": ids.start_of_text, "sep": ids.end_of_text}
    if frame.start is not None:
        roles |= {"cls": frame.start, "sep": frame.end}
    if isinstance(plain(tokenizer), WordPieceTokenizer):  # BERT's tokenizer has no names for these two
        del roles["eos"], roles["bos"]
        roles |= {"cls": ids.cls, "sep": ids.sep}
    return {f"{role}_token": tokenizer.tokens([id])[0] for role, id in roles.items() if id is not None}


def _added_token(name: str) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": name, **flags, "special": True}


def _with_special_tokens(tokenizer: WordPieceTokenizer | ByteBPETokenizer, added: Mapping[int, str]) -> bytes:
    """Return a model of the library `tokenizers` with more special tokens, and without settings that we do not read."""
    return with_more_tokens(tokenizer.plain_json(), tokenizer.names, [_added_token(name) for name in added.values()])


def _framed(model: bytes, tokenizer: Tokenizer, frame: Frame, typed: bool) -> bytes:
    """Return a model of the library that puts the tokens of a frame around one or two texts.

    A model that does so stays as it is.

    Args:
      typed: the tokens of a second text have type 1.
    """
    from tokenizers import Tokenizer as LibraryModel
    from tokenizers import processors

    result = LibraryModel.from_str(model.decode("utf-8"))
    if _has_frame(result, frame, typed):
        return model
    names = {id: _name(tokenizer, id) for id in (frame.start, frame.end) if id is not None}
    start, end = ([names[id]] if id in names else [] for id in (frame.start, frame.end))
    second = "1" if typed else "0"
    single = [f"{token}:0" for token in (*start, "$A", *end)]
    pair = [*single, *(f"{token}:{second}" for token in ("$B", *end))]
    if names or result.post_processor is not None:
        tokens = [(name, id) for id, name in names.items()]
        # The library has no way to remove a rule but one that adds nothing.
        result.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
    return result.to_str().encode("utf-8")


def _name(tokenizer: Tokenizer, id: int) -> str:
    """Return the name of a token in a template, where `$A` and `:1` mean something else."""
    (name,) = tokenizer.tokens([id])
    return f"<token {id}>" if name.startswith("$") or ":" in name else name


def _has_frame(model: Any, frame: Frame, typed: bool) -> bool:
    """Return whether a model of the library puts the tokens of a frame around texts."""
    texts = ("a", "b a")
    a, b = (model.encode(text, add_special_tokens=False).ids for text in texts)
    start, end = ([] if id is None else [id] for id in (frame.start, frame.end))
    starts = [start] if frame.optional_start is None else [start, [frame.optional_start]]
    single, pair = model.encode(texts[0]).ids, model.encode(*texts)
    if single not in [[*first, *a, *end] for first in starts]:
        return False
    types = [int(typed and place > len(start) + len(a) + len(end) - 1) for place in range(len(pair.ids))]
    return not frame.pairs or (pair.ids == [*start, *a, *end, *b, *end] and pair.type_ids == types)


def _sentence_piece_json(tokenizer: SentencePieceTokenizer, named: Mapping[str, str], special: Iterable[str]) -> bytes:
    """Return a SentencePiece model as a model of the library `tokenizers`.

    Args:
      named: names of special tokens, by role. special: tokens that the library finds in a text by default. The others
        have no text when ids are decoded, as in SentencePiece.
    Raises: ConfigError, which names the property that the library cannot express, or a text that it cuts otherwise.
    """
    from tokenizers import AddedToken, Regex, decoders

    special = [*special]
    try:
        model = as_library_model(tokenizer)
    except ConfigError as error:
        raise ConfigError(f"{error}. {_WITHOUT}") from error
    hidden = [name for role, name in named.items() if role != "unk_token" and name not in special]
    if hidden:
        every = "|".join(map(re.escape, hidden))
        model.decoder = decoders.Sequence([decoders.Replace(Regex(rf"\A(?:{every})\z"), ""), model.decoder])
    model.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    model.encode_special_tokens = True
    if (text := differing_text(tokenizer, model)) is not None:
        raise ConfigError(
            f"the SentencePiece model ({tokenizer.model_type}) cuts {text!r} otherwise than the library `tokenizers` "
            f"with the same pieces. {_WITHOUT}"
        )
    return with_exact_scores(model.to_str().encode("utf-8"))


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
