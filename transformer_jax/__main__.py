"""`python -m transformer_jax COMMAND`, the same as `transformer-jax COMMAND`."""

import logging
import sys

from transformer_jax.huge_pages import restart_with_huge_pages


def program() -> int:
    """Run one command as the main program of a process, and return the exit code."""
    restart_with_huge_pages()
    from transformer_jax.cli.main import main

    # Libraries add a handler to the root logger, which would print our warnings a second time.
    logging.getLogger("transformer_jax").propagate = False
    return main()


if __name__ == "__main__":
    sys.exit(program())
