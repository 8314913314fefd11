"""The arrays of a batch, made with NumPy alone."""
