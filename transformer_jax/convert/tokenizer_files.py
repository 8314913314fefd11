"""The tokenizer of a Hugging Face folder: which of its files describe it, and what they add to each other.

A SentencePiece model goes before a `tokenizer.json`, which was made from it. Whatever the kind, other files may add
tokens: `added_tokens_decoder` of `tokenizer_config.json`, `added_tokens.json`, `added_tokens` of `tokenizer.json`, and
special tokens that are only named, in `special_tokens_map.json` or `tokenizer_config.json`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.convert.tokenizer_rules import Rules, rules_of, with_rules
from transformer_jax.data.tokenizers import AddedTokens, Tokenizer, TokenizerPair, check_token_ids, plain
from transformer_jax.data.tokenizers.byte_bpe import ByteBPETokenizer, of_gpt2
from transformer_jax.data.tokenizers.library import LibraryTokenizer, is_word_piece, with_more_tokens
from transformer_jax.data.tokenizers.numbered_pieces import NumberedPieces
from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer
from transformer_jax.data.tokenizers.word_piece import VOCABULARY, WordPieceTokenizer, of_json, of_vocabulary
from transformer_jax.errors import CheckpointError, DataError
from transformer_jax.readers import parse_json, read_bytes, read_json_object

JSON = "tokenizer.json"
GPT2_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
MARIAN = ("source.spm", "target.spm", "vocab.json")
TARGET_VOCABULARY = "target_vocab.json"
SETTINGS = "tokenizer_config.json"
SPECIAL = "special_tokens_map.json"
ADDED = "added_tokens.json"
PIECES = ("spiece.model", "tokenizer.model")
EXPECTED = f"{JSON}, {VOCABULARY}, {' with '.join(GPT2_PAIRS[0])}, {', '.join(MARIAN)}, or {PIECES[0]}"
"""The files that we read, for messages."""
_T5_SENTINELS = 100
_MOST_SENTINELS = 1 << 16
_SENTINEL = re.compile(r"<extra_id_\d+>")
_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_WITH_OTHER_RULES = ("qwen2", "qwen3", "olmo2", "smollm3", "mistral")
"""The `model_type`s whose tokenizers of two files are not divided as GPT-2's."""


class _Added(NamedTuple):
    """An added token. token: the library's fields without its id. id: None if a file only names it."""

    token: Mapping[str, Any]
    id: int | None

    @property
    def name(self) -> str:
        return self.token["content"]


class _Files:
    """The files of a folder; each is read and parsed once. Raises OSError, ValueError and DataError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.present = frozenset(path.name for path in folder.iterdir())
        self._objects: dict[str, dict[str, Any]] = {}

    @functools.cached_property
    def json(self) -> bytes:
        """The content of `tokenizer.json`; empty if there is none."""
        return read_bytes(self.folder / JSON) if JSON in self.present else b""

    @functools.cached_property
    def json_values(self) -> dict[str, Any]:
        """The object in `tokenizer.json`; an empty one if there is no such file."""
        values = parse_json(self.json) if self.json else {}
        if not isinstance(values, dict):
            raise DataError(f"{JSON}: holds no object")
        return values

    def object(self, name: str) -> dict[str, Any]:
        """Return the object of a JSON file; an empty one if there is no such file."""
        if name not in self._objects:
            try:
                self._objects[name] = read_json_object(self.folder / name) if name in self.present else {}
            except ValueError as error:
                raise DataError(f"{name}: {error}") from error
        return self._objects[name]

    @property
    def settings(self) -> dict[str, Any]:
        return self.object(SETTINGS)

    @property
    def class_name(self) -> str:
        """The class of transformers, without `Fast`; empty if no file names it."""
        return _text(self.settings, "tokenizer_class", SETTINGS).removesuffix("Fast")

    @property
    def model_type(self) -> str:
        return _text(self.object("config.json"), "model_type", "config.json").lower()

    @functools.cached_property
    def added(self) -> list[_Added]:
        """The tokens of all files in the order of their ids, then those that are only named."""
        by_id: dict[int, dict[str, Any]] = {}
        for id, token in _items(self.settings.get("added_tokens_decoder"), f"{SETTINGS}: added_tokens_decoder"):
            if not id.isdecimal():
                raise DataError(f"{SETTINGS}: added_tokens_decoder: {id!r} is not an id")
            by_id[int(id)] = _token(token, f"{SETTINGS}: added_tokens_decoder: {id}")
        for token in _list(self.json_values.get("added_tokens"), f"{JSON}: added_tokens"):
            id = token.get("id") if isinstance(token, dict) else None
            by_id.setdefault(_id(id, f"{JSON}: added_tokens"), _token(token, f"{JSON}: added_tokens"))
        named = self._named()
        for name, id in self.object(ADDED).items():
            special = name in named
            token = {"content": name, **dict.fromkeys(_FLAGS, False), "normalized": not special, "special": special}
            by_id.setdefault(_id(id, f"{ADDED}: {name}"), token)
        result = [_Added(token, id) for id, token in sorted(by_id.items())]
        have = {token.name for token in result}
        return [*result, *(_Added(token, None) for name, token in named.items() if name not in have)]

    def _named(self) -> dict[str, dict[str, Any]]:
        """Return the special tokens that the settings name; `special_tokens_map.json` counts without a decoder."""
        sources = [(SETTINGS, self.settings)]
        if "added_tokens_decoder" not in self.settings:
            sources.append((SPECIAL, self.object(SPECIAL)))
        named: dict[str, dict[str, Any]] = {}
        for file, values in sources:
            places = [(role, values[role]) for role in _ROLES if values.get(role) is not None]
            for key in _LISTS:
                listed = values.get(key) or []
                listed = [*listed.values()] if isinstance(listed, dict) else _list(listed, f"{file}: {key}")
                places += [(key, value) for value in listed]
            for key, value in places:
                token = _token({"content": value} if isinstance(value, str) else value, f"{file}: {key}")
                named.setdefault(token["content"], token | {"special": True})
        return named


def _text(values: Mapping[str, Any], key: str, file: str) -> str:
    value = values.get(key)
    if not isinstance(value, str | None):
        raise DataError(f"{file}: {key}={value!r}: expected a text")
    return value or ""


def _items(values: Any, where: str) -> list[tuple[str, Any]]:
    if not isinstance(values, dict | None):
        raise DataError(f"{where}: {values!r:.100}: expected an object")
    return [*(values or {}).items()]


def _list(values: Any, where: str) -> list[Any]:
    if not isinstance(values, list | None):
        raise DataError(f"{where}: {values!r:.100}: expected a list")
    return values or []


def _id(id: Any, where: str) -> int:
    if type(id) is not int or id < 0:
        raise DataError(f"{where}: {id!r:.100} is not an id")
    return id


def _token(token: Any, where: str) -> dict[str, Any]:
    """Return the fields of an added token in the form of the library."""
    if not isinstance(token, dict) or not isinstance(token.get("content"), str) or not token["content"]:
        raise DataError(f"{where}: {token!r:.100}: expected an object with a text `content`")
    flags = {flag: token.get(flag, False) for flag in _FLAGS}
    if wrong := [flag for flag, value in flags.items() if not isinstance(value, bool)]:
        raise DataError(f"{where}: {wrong[0]}={flags[wrong[0]]!r}: expected true or false")
    return {"content": token["content"], **flags}


def read_folder_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a folder; None if it has no file of one. Raises CheckpointError if we cannot use it."""
    try:
        return _read(_Files(folder))
    except (DataError, OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder}: the files of its tokenizer are damaged: {error!r}") from error


def _read(files: _Files) -> Tokenizer | None:
    folder, present = files.folder, files.present
    if present.intersection(MARIAN[:2]):
        return _with_added_tokens(_of_marian(files), files)
    for name in PIECES:
        if name in present:
            return _with_added_tokens(SentencePieceTokenizer(read_bytes(folder / name)), files)
    if JSON in present and is_word_piece(files.json_values):
        return _with_library_tokens(of_json(files.json, files.settings), JSON, files)
    if VOCABULARY in present:
        own = of_vocabulary(read_bytes(folder / VOCABULARY), files.settings)
        return _with_library_tokens(own, VOCABULARY, files)
    if JSON in present:
        return _with_library_tokens(ByteBPETokenizer(_with_own_rules(files)), JSON, files)
    for pair in GPT2_PAIRS:
        if present.issuperset(pair):
            _check_splits_as_gpt2(files, pair)
            rules = rules_of(files.class_name, files.model_type) or Rules()
            data = with_rules(of_gpt2(folder, pair).model_bytes, rules, _adds_space(files))
            return _with_library_tokens(ByteBPETokenizer(data), pair[0], files)
    return None


def _check_splits_as_gpt2(files: _Files, pair: tuple[str, str]) -> None:
    """Raise DataError if two files of a byte-level BPE are those of a family that splits texts in another way."""
    named = files.class_name.lower().startswith("qwen")
    other = files.class_name if named else files.model_type
    if named or other in _WITH_OTHER_RULES:
        raise DataError(
            f"{' and '.join(pair)} are read as the tokenizer of GPT-2, and {other} splits texts in another way; add "
            f"the {JSON} of this folder, which has its rules"
        )


def _with_own_rules(files: _Files) -> bytes:
    """Return `tokenizer.json`, with the rules of the class that reads the folder in transformers, if it has some."""
    rules = rules_of(files.class_name, files.model_type)
    return files.json if rules is None or not files.settings else with_rules(files.json, rules, _adds_space(files))


def _adds_space(files: _Files) -> bool:
    value = files.settings.get("add_prefix_space", False)
    if not isinstance(value, bool):
        raise DataError(f"{SETTINGS}: add_prefix_space={value!r}: expected true or false")
    return value


def kind_of(tokenizer: Tokenizer) -> str:
    """Return the value of `data.tokenizer` for a tokenizer that was read."""
    tokenizer = plain(tokenizer.target if isinstance(tokenizer, TokenizerPair) else tokenizer)
    if isinstance(tokenizer, WordPieceTokenizer):
        return "wordpiece" if tokenizer.lower_case else "wordpiece_cased"
    if isinstance(tokenizer, SentencePieceTokenizer | NumberedPieces):
        return "bpe" if tokenizer.is_bpe else "unigram"
    return "byte_bpe"


def _room(files: _Files, size: int) -> int:
    """Return how many more tokens the embedding has rows for, by `config.json`."""
    rows = files.object("config.json").get("vocab_size")
    return rows - size if type(rows) is int else 0


def _further(tokenizer: Tokenizer, files: _Files) -> list[_Added]:
    """Return the tokens beyond those of a tokenizer, in the order of their ids.

    Those that are only named follow the others, as in transformers, if the embedding has rows for them.

    Raises: DataError if ids are left out.
    """
    size = tokenizer.vocab_size
    have = {*(tokenizer.names if isinstance(tokenizer, LibraryTokenizer) else pieces_of(tokenizer))}
    further = [added for added in files.added if added.id is not None and added.id >= size and added.name not in have]
    _check_follow({added.id: added.name for added in further if added.id is not None}, size)
    have |= {added.name for added in further}
    named = [added for added in files.added if added.id is None and added.name not in have]
    return [*further, *(named if len(named) <= _room(files, size + len(further)) else [])]


def _with_library_tokens(tokenizer: ByteBPETokenizer | WordPieceTokenizer, file: str, files: _Files) -> Tokenizer:
    """Return the tokenizer of a file with the tokens that other files add."""
    check_token_ids(tokenizer, file)
    further = [added.token for added in _further(tokenizer, files)]
    if not further:
        return tokenizer
    return type(tokenizer)(with_more_tokens(tokenizer.model_bytes, tokenizer.names, further))


def _with_added_tokens(tokenizer: Tokenizer, files: _Files) -> Tokenizer:
    """Return the tokenizer with the tokens that the other files add behind its pieces."""
    if isinstance(tokenizer, TokenizerPair):
        return tokenizer
    kind = files.class_name.lower() or files.model_type
    if kind.startswith(("t5", "mt5", "umt5")):
        names = _of_t5(tokenizer.vocab_size, files)
    else:
        names = [added.name for added in _further(tokenizer, files)]
    return AddedTokens(tokenizer, names) if names else tokenizer


def _of_t5(size: int, files: _Files) -> list[str]:
    """Return the added tokens of T5's tokenizer; it has 100 sentinels if no file says how many."""
    names = {added.id: added.name for added in files.added if added.id is not None}
    if not any(map(_SENTINEL.fullmatch, names.values())):
        named = [added for added in files.added if added.id is None and _SENTINEL.fullmatch(added.name)]
        count = files.settings.get("extra_ids", len(named) or _T5_SENTINELS)
        if type(count) is not int or not 0 <= count <= _MOST_SENTINELS:
            raise DataError(f"{SETTINGS}: extra_ids={count!r}: expected a number up to {_MOST_SENTINELS}")
        names |= {size + count - 1 - k: f"<extra_id_{k}>" for k in range(count)}
    further = {id: name for id, name in sorted(names.items()) if id >= size}
    _check_follow(further, size)
    return [*further.values()]


def _check_follow(added: Mapping[int, str], size: int) -> None:
    """Raise DataError if the ids of added tokens, sorted, do not follow those of the tokenizer's own."""
    for expected, (id, name) in enumerate(added.items(), size):
        if id != expected:
            raise DataError(
                f"the ids of its added tokens do not follow those of its {size} pieces: {name!r} has the id {id}, "
                f"where {expected} would be next"
            )


def _of_marian(files: _Files) -> Tokenizer:
    separate = files.settings.get("separate_vocabs", False)
    if not isinstance(separate, bool):
        raise DataError(f"{SETTINGS}: separate_vocabs={separate!r}: expected true or false")
    names = (*MARIAN, TARGET_VOCABULARY) if separate else MARIAN
    if missing := [name for name in names if not (files.folder / name).is_file()]:
        raise DataError(f"its Marian tokenizer lacks {' and '.join(missing)}; expected {', '.join(names)}")
    source, target, vocabulary = (read_bytes(files.folder / name) for name in MARIAN)
    if separate:
        target_vocabulary = read_bytes(files.folder / TARGET_VOCABULARY)
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
    return own if parse_json(vocabulary) == pieces_of(own) else numbered


def pieces_of(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of all tokens."""
    return {token: id for id, token in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}
