"""`python -m transformer_jax COMMAND`, the same as `transformer-jax COMMAND`."""

import logging
import sys

from transformer_jax.huge_pages import restart_with_huge_pages


def program() -> int:
    """A process of its own that runs one command; returns the exit code."""
    restart_with_huge_pages()
    from transformer_jax.cli.main import main

    # Libraries put a handler of theirs on the root logger, which would print our warnings a second time.
    logging.getLogger("transformer_jax").propagate = False
    return main()


if __name__ == "__main__":
    sys.exit(program())
