"""Every position encoding; `test_longer` tells which of them reach beyond the lengths of training."""

BASELINE = "configs/quickstart.py"

VARIANTS = {name: {"model.position_encoding": name} for name in ("sinusoidal", "learned", "rotary", "relative", "none")}
