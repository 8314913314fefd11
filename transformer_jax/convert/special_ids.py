"""Ids of special tokens in config.json, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformer_jax.config import ModelConfig
from transformer_jax.convert.tables import Family
from transformer_jax.data.tokenizers import SpecialIds
from transformer_jax.errors import ConfigError


def special_ids_of(theirs: Mapping[str, Any], vocab_size: int) -> SpecialIds:
    """Return the ids of padding and end-of-sequence in a config.json; if it lists several ids for one, the first.

    An id is None if its key is missing or null, or if the value is not an id of the model, such as Llama's padding -1.
    """

    def id_of(name: str) -> int | None:
        value = theirs.get(name)
        value = value[0] if isinstance(value, list) and value else value
        return value if type(value) is int and 0 <= value < vocab_size else None

    return SpecialIds(pad=id_of("pad_token_id"), eos=id_of("eos_token_id"))


def id_keys(family: Family, config: ModelConfig, ids: SpecialIds | None) -> dict[str, int | None]:
    """Return the keys of config.json for a family.

    An id that is not known is null. transformers would take a missing key for the id of the family's published model.
    It loads every family with nulls, and asks for a padding id where it needs one.

    Args:
      ids: of the tokenizer; None if they are not known.
    Raises: ConfigError if the family cannot have the tokenizer's padding.
    """
    if config.inputs == "patches":
        return {}
    ids = SpecialIds() if ids is None else ids
    if family.architecture == "encoder_only":
        return {"pad_token_id": _padding(family, ids.pad)}
    keys = {"eos_token_id": ids.eos, "pad_token_id": ids.pad}
    start = "decoder_start_token_id" if family.architecture == "encoder_decoder" else "bos_token_id"
    return {**keys, start: config.decoder_start_id}


def _padding(family: Family, pad: int | None) -> int | None:
    """Return the id of padding, or that of the only one with which a family computes the same as our models.

    Raises: ConfigError if the tokenizer has another.
    """
    allowed = family.required.get("pad_token_id", (pad,))
    if pad is not None and pad not in allowed:
        raise ConfigError(
            f"the tokenizer has the padding id {pad}: {family.label} has {allowed[0]}; {family.because['pad_token_id']}"
        )
    return allowed[0] if pad is None else pad
