"""Classes of transformers that take from tokenizer.json the tokens alone, and divide texts by rules of their own.

Others take the whole file. Which class reads a folder follows from `tokenizer_class` and `model_type`, as in
AutoTokenizer of transformers 5.23.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer_jax.errors import ConfigError
from transformer_jax.readers import parse_json

_WHOLE_FILE = "TokenizersBackend"
_BY_TYPE = {
    **{"gpt2": "GPT2Tokenizer", "roberta": "RobertaTokenizer", "bart": "RobertaTokenizer"},
    **{"qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "gpt_neox": "GPTNeoXTokenizer"},
    **{"mistral": _WHOLE_FILE, "olmo2": _WHOLE_FILE},
}
"""The class of a `model_type`. With `TokenizersBackend`, the one that a file names does not count."""
_ALWAYS = ("qwen2",)
"""The `model_type`s with which the class that a file names does not count either."""


class Rules(NamedTuple):
    """How a class divides a text before it looks for tokens.

    composes: whether characters and their accents are composed first (NFC). pattern: of the parts of a text; None for
    GPT-2's.
    """

    composes: bool = False
    pattern: str | None = None


RULES = {
    **dict.fromkeys(("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer"), Rules()),
    "GPTNeoXTokenizer": Rules(composes=True),
    "Qwen2Tokenizer": Rules(
        composes=True,
        pattern=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    ),
}
"""By the names of classes, without `Fast`. All are byte-level BPE."""


def rules_of(class_name: str, model_type: str) -> Rules | None:
    """Return the rules of the class that reads a folder; None if it takes those of tokenizer.json.

    Args:
      class_name: that tokenizer_config.json names, without `Fast`; empty if there is none. model_type: of config.json.
    """
    usual = _BY_TYPE.get(model_type, "")
    counts = not usual or (usual != _WHOLE_FILE and model_type not in _ALWAYS)
    return RULES.get((counts and class_name) or usual)


def with_rules(model_bytes: bytes, rules: Rules, adds_space: bool) -> bytes:
    """Return a tokenizer.json of byte-level BPE with these rules; the same bytes if it has them or is of another kind.

    Args:
      adds_space: whether a space is put in front of a text.
    """
    values = parse_json(model_bytes)
    if _has_rules(values, rules, adds_space) or not _is_of_bytes(values.get("pre_tokenizer")):
        return model_bytes
    return json.dumps(values | _own(rules, adds_space), ensure_ascii=False).encode("utf-8")


def check_family(family: str, label: str, model_bytes: bytes) -> None:
    """Raise ConfigError if transformers would read a tokenizer.json in a folder of a family with other rules.

    Args:
      family: its `model_type`; label: its name in messages.
    """
    if family not in _ALWAYS or _has_rules(parse_json(model_bytes), RULES[_BY_TYPE[family]], adds_space=False):
        return
    raise ConfigError(
        f"transformers reads the tokenizer of every {label} folder as {_BY_TYPE[family]}, which would give other ids "
        "than this one. --without_tokenizer writes the model alone"
    )


def _has_rules(values: Mapping[str, Any], rules: Rules, adds_space: bool) -> bool:
    return all(_same(values.get(name), expected) for name, expected in _own(rules, adds_space).items())


def _is_of_bytes(division: Any) -> bool:
    """Return whether one of the rules that divide a text turns it into bytes."""
    parts = division.get("pretokenizers", [division]) if isinstance(division, dict) else []
    return isinstance(parts, list) and any(isinstance(x, dict) and x.get("type") == "ByteLevel" for x in parts)


def _own(rules: Rules, adds_space: bool) -> dict[str, Any]:
    normalizer = {"type": "NFC"} if rules.composes else None
    return {"normalizer": normalizer, "pre_tokenizer": _division(rules, adds_space)}


def _division(rules: Rules, adds_space: bool) -> dict[str, Any]:
    """Return the rules that divide a text, in the form of the library `tokenizers`."""
    to_bytes = {"type": "ByteLevel", "add_prefix_space": adds_space, "trim_offsets": True, "use_regex": True}
    if rules.pattern is None:
        return to_bytes
    split = {"type": "Split", "pattern": {"Regex": rules.pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, to_bytes | {"use_regex": False}]}


def _same(found: Any, expected: Any) -> bool:
    """Return whether two rules divide a text alike; `trim_offsets` only says where tokens are, and the default of
    `use_regex` is true."""

    def essential(value: Any) -> Any:
        if isinstance(value, dict):
            plain = {name: essential(part) for name, part in value.items() if name != "trim_offsets"}
            return {"use_regex": True, **plain} if value.get("type") == "ByteLevel" else plain
        return [essential(part) for part in value] if isinstance(value, list) else value

    return essential(found) == essential(expected)
