"""WordPiece as in BERT (Devlin et al. 2019), by the library `tokenizers`: words, and pieces of words with `##`.

Text is cleaned of control characters. It is divided at spaces, around punctuation and around every Chinese character.
`wordpiece` also writes letters small and without accents; `wordpiece_cased` keeps them. A word becomes the longest
piece that it begins with, then the longest piece that goes on, and so forth; if that fails, or the word has more than
100 characters, it is one `[UNK]`. All this cannot be undone.

`[SEP]` ends a text and `[CLS]` begins it: these are eos and bos.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from transformer_jax.data.tokenizers.library import LibraryTokenizer, content, first_file, is_word_piece
from transformer_jax.data.tokenizers.tokenizer import (
    SpecialIds,
    VocabularyFileError,
    VocabularySizeError,
    training_lines,
    with_named_roles,
    with_text,
)
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.readers import parse_json

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first ids of a vocabulary that is trained here."""
OWN_IDS = SpecialIds(pad=0, eos=3, unk=1, bos=2, mask=4, cls=2, sep=3)
VOCABULARY, JSON, SETTINGS = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
PREFIX = "##"
_LONGEST_WORD = 100
_REQUIRED = SPECIAL_TOKENS[1:4]
_SMALLEST = len(SPECIAL_TOKENS) + 2
# Stand for the characters that continue a word while pieces are learnt. The cleaning removes them from text.
_FIRST_PRIVATE = 0xF0000
_REPEATED = 1000
# No space in front of these marks, none behind an opening bracket, none around an apostrophe within a word.
_SPACES = (
    (re.compile(r" ([.,!?;:)\]}])"), r"\1"),
    (re.compile(r"([(\[{]) "), r"\1"),
    (re.compile(r"(\w) (['\u2019]) (\w)"), r"\1\2\3"),
)


class WordPieceTokenizer(LibraryTokenizer):
    """A WordPiece model in the library's JSON.

    Raises DataError for other bytes, and for a model without `[UNK]`, `[CLS]` or `[SEP]`.
    """

    def __init__(self, model_bytes: bytes) -> None:
        super().__init__(model_bytes, "WordPiece")
        if not isinstance(self._tokenizer.model, models.WordPiece):
            raise DataError(f"tokenizer: {type(self._tokenizer.model).__name__}, expected WordPiece")
        ids = {name: self._tokenizer.token_to_id(name) for name in SPECIAL_TOKENS}
        if missing := [name for name in _REQUIRED if ids[name] is None]:
            raise DataError(f"tokenizer: the vocabulary of WordPiece has no {' and no '.join(missing)}")
        found = SpecialIds(ids["[PAD]"], ids["[SEP]"], ids["[UNK]"], ids["[CLS]"], ids["[MASK]"])
        self.special_ids = with_named_roles(found._replace(cls=found.bos, sep=found.eos), self.special_tokens())

    @property
    def lower_case(self) -> bool:
        """Whether letters are written small."""
        normalizer = self._tokenizer.normalizer
        return isinstance(normalizer, normalizers.BertNormalizer) and normalizer.lowercase

    @property
    def is_of_bert(self) -> bool:
        """Whether words are found as in BERT: by its rules for characters, at spaces and punctuation."""
        rules, before = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        return (
            isinstance(rules, normalizers.BertNormalizer)
            and rules.clean_text
            and isinstance(before, pre_tokenizers.BertPreTokenizer)
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The rules for characters, as in `tokenizer_config.json`."""
        rules = self._tokenizer.normalizer
        if not isinstance(rules, normalizers.BertNormalizer):
            return {"do_lower_case": self.lower_case}
        chinese, strip = rules.handle_chinese_chars, rules.strip_accents
        return {"do_lower_case": rules.lowercase, "tokenize_chinese_chars": chinese, "strip_accents": strip}

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """See `Tokenizer`; spaces that punctuation usually has not are removed, and unk is written `[UNK]`."""
        text = self._tokenizer.decode(with_text(ids, self.special_ids), skip_special_tokens=False)
        for spaces, without in _SPACES:
            text = spaces.sub(without, text)
        return text

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        return [self.decode(row) for row in rows]

    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """See `Tokenizer`; a piece that goes on with a word begins with `##`."""
        return [self._token(int(id)) for id in ids]

    def _token(self, id: int) -> str:
        token = self._tokenizer.id_to_token(id)
        if token is None and id >= self.vocab_size:
            raise IndexError(f"id {id} is not below vocab_size={self.vocab_size}")
        return token or ""  # an id without a token, see `id_problem`


def train_word_piece(texts: Iterable[str], vocab_size: int, lower_case: bool = True) -> WordPieceTokenizer:
    """Train one vocabulary for all texts: 5 special tokens, characters, and the merges of the most frequent pairs.

    The merges are those of BPE, as in the library's own trainer; that of BERT was not published. A character counts
    twice, at the beginning of a word and within it. The most frequent of these fill at most half of the vocabulary,
    unless merges cannot fill the rest; words with others become unk. The result does not depend on the number of
    threads.

    Raises: ConfigError if the texts have too few pairs to merge, or `vocab_size` is too small for the special tokens
      and characters; DataError if there is no text.
    """
    if vocab_size < _SMALLEST:
        raise VocabularySizeError(
            vocab_size,
            f"the tokenizer needs at least {_SMALLEST}: {len(SPECIAL_TOKENS)} "
            "special tokens and a character at the beginning of a word and within it",
        )
    words = _words(texts, lower_case)
    if not words:
        raise DataError("tokenizer: the training split has no text to train on")
    counts: collections.Counter[str] = collections.Counter()
    for (first, *rest), count in words.items():
        counts[first] += count
        for character in rest:
            counts[PREFIX + character] += count
    size = vocab_size - len(SPECIAL_TOKENS)
    for room in (max(size // 2, 2), size):
        characters = sorted(sorted(counts, key=lambda piece: (-counts[piece], piece))[:room])
        pieces = _learnt(words, characters, size)
        if len(pieces) == size:
            return _of_pieces([*SPECIAL_TOKENS, *pieces], {"do_lower_case": lower_case})
    largest = len(pieces) + len(SPECIAL_TOKENS)
    raise VocabularySizeError(vocab_size, f"the training split yields at most {largest} tokens; choose at most that")


def _learnt(words: Mapping[str, int], characters: Sequence[str], size: int) -> list[str]:
    """Return at most `size` pieces in the order of their ids: characters, those within a word with `##`, and merges."""
    private = {piece: chr(_FIRST_PRIVATE + i) for i, piece in enumerate(characters)}
    # Each form of a character is a character of its own here, so the ids of pairs do not depend on a hash table.
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=list(private.values()), show_progress=False)
    tokenizer.train_from_iterator(_repeated(words, private), trainer)
    ids, shown = tokenizer.get_vocab(), {character: piece for piece, character in private.items()}
    parts = [[shown[character] for character in token] for token in sorted(ids, key=ids.__getitem__)]
    return [first + "".join(piece.removeprefix(PREFIX) for piece in rest) for first, *rest in parts]


def _words(texts: Iterable[str], lower_case: bool) -> dict[str, int]:
    """Return the number of times that each word occurs, in the order of their first."""
    normalizer, divide = _normalizer({"do_lower_case": lower_case}), pre_tokenizers.BertPreTokenizer()
    words: collections.Counter[str] = collections.Counter()
    for line in training_lines(texts):
        for word, _ in divide.pre_tokenize_str(normalizer.normalize_str(line)):
            words[word] += 1
    return {word: count for word, count in words.items() if len(word) <= _LONGEST_WORD}


def _repeated(words: Mapping[str, int], private: Mapping[str, str]) -> Iterator[str]:
    """Yield every word as often as it occurs, in private characters; words with other characters are left out."""
    for (first, *rest), count in words.items():
        found = [private.get(piece) for piece in (first, *(PREFIX + character for character in rest))]
        if None not in found:
            word = "".join(filter(None, found)) + " "
            for start in range(0, count, _REPEATED):
                yield word * min(count - start, _REPEATED)


def _normalizer(settings: Mapping[str, Any]) -> normalizers.BertNormalizer:
    """Return BERT's rules for characters, with the settings of a `tokenizer_config.json`; raises DataError."""
    _check_settings(settings)
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )


def _of_pieces(pieces: list[str], settings: Mapping[str, Any]) -> WordPieceTokenizer:
    """Return the tokenizer of the pieces in the order of their ids; raises DataError if a special token is missing."""
    ids = {piece: id for id, piece in enumerate(pieces)}
    if missing := [name for name in _REQUIRED if name not in ids]:
        raise DataError(f"the vocabulary has no {' and no '.join(missing)}")
    model = models.WordPiece(
        ids, unk_token="[UNK]", max_input_chars_per_word=_LONGEST_WORD, continuing_subword_prefix=PREFIX
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = _normalizer(settings)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX, cleanup=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens([name for name in SPECIAL_TOKENS if name in ids])
    return WordPieceTokenizer(tokenizer.to_str().encode("utf-8"))


def read_word_piece(path: Path, vocab_size: int, lower_case: bool = True) -> WordPieceTokenizer:
    """Return the tokenizer of a file `vocab.txt` or `tokenizer.json`, or of a folder with one of them.

    The file may be .gz. A `tokenizer_config.json` beside it, with `do_lower_case`, is read too.

    Args:
      lower_case: what the config says.

    Raises: DataError if a file cannot be read or has another form; ConfigError if it has more than `vocab_size` ids, or
      if the files say that letters are written otherwise.
    """
    try:
        tokenizer = of_files(path, lower_case)
    except DataError as error:
        where = "" if str(path) in str(error) else f"{path}: "
        raise VocabularyFileError(f"{where}{error}") from error
    if tokenizer.lower_case != lower_case:
        kinds = {True: "wordpiece", False: "wordpiece_cased"}
        raise ConfigError(
            f"config: data.tokenizer={kinds[lower_case]}: {path} is for {kinds[not lower_case]}; set data.tokenizer="
            f"{kinds[not lower_case]}"
        )
    if tokenizer.vocab_size > vocab_size:
        raise VocabularySizeError(vocab_size, f"{path} has {tokenizer.vocab_size} ids")
    return tokenizer


def of_files(path: Path, lower_case: bool = True) -> WordPieceTokenizer:
    """Return the tokenizer of a file or folder, as `read_word_piece`; raises DataError.

    Args:
      lower_case: whether letters are written small if no file says it.
    """
    file = first_file(path, JSON, VOCABULARY) if path.is_dir() else path
    if file is None:
        raise DataError(f"the folder has no {JSON} and no {VOCABULARY}")
    settings_file = file.with_name(SETTINGS)
    settings: dict[str, Any] = {}
    if settings_file.is_file():
        settings = _object(content(settings_file), SETTINGS)
    if not file.name.removesuffix(".gz").endswith(".json"):
        return of_vocabulary(content(file), {"do_lower_case": lower_case} | settings)
    return of_json(content(file), settings)


def of_vocabulary(data: bytes, settings: Mapping[str, Any]) -> WordPieceTokenizer:
    """Return the tokenizer of a `vocab.txt` and the settings beside it; raises DataError."""
    return _of_pieces(_pieces_of(data), settings)


def of_json(data: bytes, settings: Mapping[str, Any]) -> WordPieceTokenizer:
    """Return the tokenizer of a `tokenizer.json` and the settings beside it; raises DataError.

    BERT's classes in transformers take the rules for characters from the settings, and their own defaults for those
    that are not there. Another class, and a file without settings, has the rules of the file.
    """
    values = _object(data, JSON)
    if not is_word_piece(values):
        raise DataError(f"{len(data)} bytes are not a model of WordPiece")
    normalizer = values.get("normalizer") or {}
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer" and _is_of_bert(settings):
        _check_settings(settings)
        rules = {
            "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": settings.get("do_lower_case", True),
        }
        if "do_lower_case" in settings or any(normalizer.get(name) != rule for name, rule in rules.items()):
            normalizer |= rules
            data = json.dumps(values, ensure_ascii=False).encode("utf-8")
    return WordPieceTokenizer(data)


def _is_of_bert(settings: Mapping[str, Any]) -> bool:
    name = settings.get("tokenizer_class") or "BertTokenizer"
    return bool(settings) and str(name).removesuffix("Fast").endswith(("BertTokenizer", "ElectraTokenizer"))


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Raise DataError for a setting of the rules for characters that is neither true nor false."""
    for name in ("do_lower_case", "tokenize_chinese_chars", "strip_accents"):
        value = settings.get(name)
        if not (isinstance(value, bool) or (value is None and name == "strip_accents") or name not in settings):
            raise DataError(f"{SETTINGS}: {name}={value!r}: expected true or false")


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        values = parse_json(data)
    except ValueError as error:
        raise DataError(f"{name} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{name} holds no object")
    return values


def _pieces_of(data: bytes) -> list[str]:
    """Return the lines of a `vocab.txt`; raises DataError if they are not a vocabulary."""
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"it is not UTF-8: {error}") from error
    pieces = [line.removesuffix("\r") for line in lines]
    while pieces and not pieces[-1]:
        pieces.pop()
    if not pieces:
        raise DataError("it is empty")
    first: dict[str, int] = {}
    for number, piece in enumerate(pieces, 1):
        if not piece:
            raise DataError(f"line {number} is empty; the number of a line is an id")
        if piece in first:
            raise DataError(f"it has {piece!r} in line {first[piece]} and line {number}")
        first[piece] = number
    return pieces
