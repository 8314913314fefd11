"""Requests for generation: from the ids of a source, which an encoder reads, or from those of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transformer_jax.config import DecodeConfig
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.decoding.generate import Decoders, Request, check_ids, output_limits, position_capacity
from transformer_jax.decoding.settings import Ends
from transformer_jax.errors import DataError
from transformer_jax.models.decoder import TWO_WAY


def ends_of(tokenizer: Tokenizer, vocab_size: int) -> Ends:
    """Return the ids of a tokenizer that generation needs.

    Args:
      vocab_size: of the model. No output contains padding, or an id of the model that the tokenizer lacks.
    """
    special_ids = tokenizer.special_ids
    pad = () if special_ids.pad is None else (special_ids.pad,)
    return Ends(special_ids.eos, (*pad, *range(tokenizer.vocab_size, vocab_size)))


def source_request(
    decoders: Decoders,
    decode: DecodeConfig,
    start_id: int,
    ids: np.ndarray,
    lengths: np.ndarray,
    prompts: Sequence[Sequence[int]] | None = None,
) -> Request:
    """Return the request for one output per source from an encoder-decoder.

    Args:
      start_id: the first decoder input.
      ids: [B, S] int32 sources; lengths: [B] int, number of tokens of each; a row of length 0 gets no output.
      prompts: the beginning of every output, without the start id; outputs do not include it. It may be empty, which
        is the default.
    Raises: DataError if there are no sources, the number of prompts differs, or an id is outside the vocabulary.
    """
    if not len(ids):
        raise DataError("inputs: no rows; expected one or more")
    check_ids("inputs", ids, decoders[0].source_vocab_size, "source_vocab_size")
    if prompts is not None and len(prompts) != len(ids):
        raise DataError(f"prompts: {len(prompts)} for {len(ids)} inputs; give one per input")
    given = [[start_id, *prompt] for prompt in prompts or [()] * len(ids)]
    max_lengths, limit = output_limits(
        decode, np.array(list(map(len, given))), position_capacity(decoders), lengths, ids.shape[1]
    )
    batch = {"inputs": ids.astype(np.int32), "inputs_mask": np.arange(ids.shape[1]) < lengths[:, None]}
    return Request(batch, given, max_lengths, limit)


def prompt_request(
    start_id: int, prompts: Sequence[Sequence[int]], max_lengths: np.ndarray, two_way: bool = False
) -> Request:
    """Return the request for one output per prompt from a decoder without an encoder.

    Args:
      start_id: the first decoder input. prompts: ids, without the start id; a prompt may be empty.
      max_lengths: int [B], greatest number of new tokens of each row; 0 for a row without output.
      two_way: the tokens of a prompt attend to each other in both directions, as in a prefix LM.
    """
    given = [[start_id, *prompt] for prompt in prompts]
    batch = {TWO_WAY: np.array(list(map(len, given)), np.int32)} if two_way else {}
    return Request(batch, given, max_lengths, int(max_lengths.max()))
