"""A test hook: named places where the process can be killed as if the machine had failed.

`TRANSFORMER_JAX_KILL_AT=inside_save:200` makes the process send itself SIGKILL when step 200 reaches that place, so
that a test can check the files after a crash there. In the token cache, the number counts chunks instead of steps, and
in an output file the lines that are done. The variable is read once, at import. Without it, as always outside such a
test, a kill point is one comparison with None.
"""

import os
import re
import signal

from transformer_jax.errors import ConfigError

VARIABLE = "TRANSFORMER_JAX_KILL_AT"
NAMES = (
    *("after_batch", "inside_save", "before_commit", "inside_evaluation", "inside_token_cache"),
    *("inside_output", "before_finish", "inside_finish"),
)


def parse_kill_point(value: str | None) -> tuple[str, int] | None:
    """Return `NAME:STEP` as (name, step), or None for None; raises ConfigError for a value that would never fire."""
    if value is None:
        return None
    match = re.fullmatch(r"([a-z_]+):(\d+)", value)
    if match is None or match[1] not in NAMES:
        raise ConfigError(f"{VARIABLE}={value!r}: expected NAME:STEP with NAME one of {', '.join(NAMES)}")
    return match[1], int(match[2])


_KILL_AT = parse_kill_point(os.environ.get(VARIABLE))


def kill_point(name: str, step: int) -> None:
    """Kill this process without any clean-up, if the variable names this place and step."""
    if _KILL_AT is not None and (name, step) == _KILL_AT:
        os.kill(os.getpid(), signal.SIGKILL)
