"""Notes of commands on a config, on stderr: derived defaults that have moved, and fields set from the user's files."""

from transformer_jax.cli.help import value_text
from transformer_jax.config import ReadConfig, walk
from transformer_jax.host.terminal import say


def say_moved_defaults(read: ReadConfig) -> None:
    """Print in one line the derived defaults that the flags have moved, with their values in the file; or nothing."""
    if moved := read.moved_defaults():
        say("; ".join(map(str, moved)))


def say_fitted(read: ReadConfig) -> None:
    """Print in one line what follows from the user's files, apart from the model and the optimizer; or nothing."""
    values = {name: value for name, _, value in walk(read.config) if name in read.fitted}
    shown = [f"{n}={value_text(v)}" for n, v in values.items() if n.split(".")[0] in ("task", "data", "training")]
    if shown:
        say(f"from the data: {' '.join(shown)}")
