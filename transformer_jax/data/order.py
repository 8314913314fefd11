"""The random numbers that determine the order of an epoch."""

from __future__ import annotations

import numpy as np

# First words of the seeds of the two random streams, so that they never coincide: the order of an epoch's batches, the
# same for every run, and which examples fill them.
ORDER_STREAM, ROWS_STREAM = 1, 2


def generator(stream: int, seed: int, epoch: int, part: int) -> np.random.Generator:
    """The random numbers of one part of an epoch's order."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([stream, seed, epoch, part])))
