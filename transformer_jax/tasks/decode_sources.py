"""Generation from sources: ids of one text in, ids of another out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transformer_jax.config import DecodeConfig
from transformer_jax.data.tokenizers import SpecialIds
from transformer_jax.decoding.generate import Decoders, Request, check_ids, output_limits, position_capacity
from transformer_jax.decoding.settings import Ends
from transformer_jax.errors import DataError


def ends_of(special_ids: SpecialIds) -> Ends:
    """Return what generation needs to know of a tokenizer's special ids."""
    return Ends(special_ids.eos, () if special_ids.pad is None else (special_ids.pad,))


def source_request(
    decoders: Decoders,
    decode: DecodeConfig,
    start_id: int,
    ids: np.ndarray,
    lengths: np.ndarray,
    prompts: Sequence[Sequence[int]] | None = None,
) -> Request:
    """Return what an encoder-decoder generates from: an output per source.

    Args:
      start_id: the first decoder input.
      ids: [B, S] int32 sources; lengths: [B] int, tokens of each; a row of length 0 gets no output.
      prompts: what every output begins with, without the start id; not part of the output. Default nothing.
    Raises: DataError if there are no sources, or prompts do not fit them; ids outside the vocabulary.
    """
    if not len(ids):
        raise DataError("inputs: there are none")
    check_ids("inputs", ids, decoders[0].vocab_size)
    if prompts is not None and len(prompts) != len(ids):
        raise DataError(f"prompts: {len(prompts)} for {len(ids)} inputs")
    for row, prompt in enumerate(prompts or ()):
        if not len(prompt):
            raise DataError(f"prompts: the one of row {row} is empty; without prompts, outputs are free")
    given = [[start_id, *prompt] for prompt in prompts or [()] * len(ids)]
    max_lengths, limit = output_limits(
        decode, np.array(list(map(len, given))), position_capacity(decoders), lengths, ids.shape[1]
    )
    batch = {"inputs": ids.astype(np.int32), "inputs_mask": np.arange(ids.shape[1]) < lengths[:, None]}
    return Request(batch, given, max_lengths, limit)
