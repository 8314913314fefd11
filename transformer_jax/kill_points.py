"""A test hook: named places where the process can be killed as if the machine had died.

`TRANSFORMER_JAX_KILL_AT=inside_save:200` makes the process send itself SIGKILL when step 200 comes to that place, so
that a test can check what a crash exactly there leaves behind; in the token cache it is chunks that are counted. The
variable is read once, at import; unset, which is always so outside such a test, a kill point is one comparison with
None.
"""

import os
import re
import signal

from transformer_jax.errors import ConfigError

VARIABLE = "TRANSFORMER_JAX_KILL_AT"
NAMES = ("after_batch", "inside_save", "before_commit", "inside_evaluation", "inside_token_cache")


def parse(value: str | None) -> tuple[str, int] | None:
    """`NAME:STEP` as (name, step), None for None; raises ConfigError for anything that would never fire."""
    if value is None:
        return None
    match = re.fullmatch(r"([a-z_]+):(\d+)", value)
    if match is None or match[1] not in NAMES:
        raise ConfigError(f"{VARIABLE}={value!r}: expected NAME:STEP with NAME one of {', '.join(NAMES)}")
    return match[1], int(match[2])


_KILL_AT = parse(os.environ.get(VARIABLE))


def kill_point(name: str, step: int) -> None:
    """Kills this process, without any clean-up, if it was told to die at this place in this step."""
    if _KILL_AT is not None and (name, step) == _KILL_AT:
        os.kill(os.getpid(), signal.SIGKILL)
