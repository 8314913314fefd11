"""Building blocks: pure functions of arrays, and thin Linen shells that own their parameters."""
