"""Building blocks: pure functions of arrays, and small Linen modules that own the parameters."""
