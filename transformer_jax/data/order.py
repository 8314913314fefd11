"""Random numbers that determine the order of an epoch."""

from __future__ import annotations

import numpy as np

# First words of the seeds of random streams, which must differ: the order of an epoch's batches, which is the same for
# every run; the choice of the examples that fill them; the lengths of prefixes; the corruption of texts; the drawn
# images of a corpus; the augmentation of images; and the drawn keys and values of a corpus.
ORDER_STREAM, ROWS_STREAM, PREFIX_STREAM, CORRUPTION_STREAM, SHAPES_STREAM, AUGMENTATION_STREAM = 1, 2, 3, 4, 5, 6
RECALL_STREAM = 7


def generator(stream: int, seed: int, epoch: int, part: int) -> np.random.Generator:
    """Return the generator of random numbers for one part of an epoch's order."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([stream, seed, epoch, part])))
