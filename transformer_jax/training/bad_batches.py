"""Batches of steps whose loss or gradient was not finite, stored for replay."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.data.batching import Batch
from transformer_jax.errors import CheckpointError
from transformer_jax.host.files import write_atomically


def keep_batch(folder: Path, step: int, batch: Batch) -> Path:
    """Write the batch of a step to FOLDER/step_STEP.npz and return the file; raises CheckpointError."""
    part = "" if jax.process_count() == 1 else f"_rows_of_process_{jax.process_index()}"
    file, data = folder / f"step_{step}{part}.npz", io.BytesIO()
    arrays: dict[str, Any] = dict(batch)
    np.savez(data, **arrays)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be made: {error.strerror}") from error
    write_atomically(file, data.getvalue())
    return file
