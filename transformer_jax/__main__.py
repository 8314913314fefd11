"""`python -m transformer_jax COMMAND`, the same as `transformer-jax COMMAND`.

Nothing is imported from the current folder, which Python puts first for `-m`: it may be a folder from elsewhere, with
files that are named like modules. A folder in PYTHONPATH stays.
"""

import os
import sys

if __name__ == "__main__" and sys.argv[0] == __file__ and not sys.flags.safe_path and sys.path[0] == os.getcwd():
    del sys.path[0]

import logging

from transformer_jax.host.huge_pages import restart_with_huge_pages


def program() -> int:
    """Run one command as the main program of a process, and return the exit code."""
    restart_with_huge_pages()
    from transformer_jax.cli.main import main

    # Libraries add a handler to the root logger, which would print our warnings a second time.
    logging.getLogger("transformer_jax").propagate = False
    return main()


if __name__ == "__main__":
    sys.exit(program())
