"""Translation by a decoder alone, whose prompt is the source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transformer_jax.decoding.generate import Request, output_limits, position_capacity
from transformer_jax.models.decoder import TWO_WAY
from transformer_jax.tasks.batches.pair_rows import reads_source_two_way
from transformer_jax.tasks.trained.lines import Line
from transformer_jax.tasks.trained.text_generator import Reading
from transformer_jax.tasks.trained.translator import Translator


class RowTranslator(Translator):
    """A translation model that reads the source and writes the target in one row; see `tasks/batches/pair_rows.py`."""

    def _read(self, lines: Sequence[Line]) -> Reading:
        reading, capacity = super()._read(lines), position_capacity(self._decoders)
        for i, (ids, begin) in enumerate(zip(reading.ids, reading.begins, strict=True)):
            if i not in reading.problems and capacity is not None and len(ids) + len(begin) >= capacity:
                reading.problems[i] = (
                    f"its {len(ids) + len(begin)} tokens leave no room for an output in model.max_length={capacity}"
                )
        return reading

    def _request(self, reading: Reading, chosen: np.ndarray, num_rows: int, width: int) -> Request:
        numbers = np.resize(chosen, num_rows)  # any prompt works for rows of padding
        start_id = self.config.model.decoder_start_id
        prompts = [[start_id, *reading.ids[i], *reading.begins[i]] for i in numbers]
        sizes = np.array([len(prompt) for prompt in prompts])
        lengths = np.where(np.arange(num_rows) < len(chosen), reading.lengths[numbers], 0)
        max_lengths, limit = output_limits(self.config.decode, sizes, position_capacity(self._decoders), lengths, width)
        batch = {}
        if reads_source_two_way(self.config.task):
            batch = {TWO_WAY: np.array([1 + len(reading.ids[i]) for i in numbers], np.int32)}
        return Request(batch, prompts, max_lengths, limit)
