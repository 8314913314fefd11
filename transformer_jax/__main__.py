"""`python -m transformer_jax COMMAND`, the same as `transformer-jax COMMAND`."""

import sys

from transformer_jax.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
