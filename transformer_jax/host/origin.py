"""Where a run comes from: its command, the version of the package, and commits of the package and the current folder.

The environment is left out, and passwords in the command are masked.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.host.versions import own_version

_SECONDS = 2.0  # for all questions to git together
_HIDDEN = "***"
_SECRETS = (
    re.compile(r"(://[^/\s:@]*:)\S*(?=@)"),  # USER:PASSWORD@HOST
    re.compile(r"(https?://)[^/\s:@]+(?=@)"),  # TOKEN@HOST
    re.compile(r"(?i)((?:password|passwd|secret|api_?key)=)[^\s&]+"),
)


def origin() -> dict[str, Any]:
    """Return command, version, and `git_state` of the package, if it runs from a clone, and of the current folder."""
    return _origin(tuple(sys.argv), Path.cwd())


@functools.cache  # trials that train together start together
def _origin(words: tuple[str, ...], folder: Path) -> dict[str, Any]:
    package, until = Path(__file__).resolve().parent.parent, time.monotonic() + _SECONDS
    is_checkout = (package.parent / ".git").exists()
    return {
        "command": masked(words),
        "version": own_version(),
        "package": git_state(package, until - time.monotonic()) if is_checkout else None,
        "folder": git_state(folder, until - time.monotonic()),
    }


def masked(words: Sequence[str]) -> str:
    """Return a command line in which passwords are replaced by `***`."""
    shown = []
    for word in words:
        for secret in _SECRETS:
            word = secret.sub(rf"\g<1>{_HIDDEN}", word)
        shown.append(word)
    return shlex.join(shown)


def git_state(folder: Path, seconds: float = _SECONDS) -> dict[str, Any] | None:
    """Return commit, branch and whether tracked files have uncommitted changes, of the repository around a folder.

    A repository without a commit has the commit None, and one without a branch the branch None.

    Returns: None if there is no repository or no git, or git has not answered in time.
    """
    # Without fsmonitor, which is a program that the repository names, and without a lock that other commands wait for.
    asked = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder), "status"]
    flags = ["--porcelain=v2", "--branch", "--untracked-files=no"]
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        found = subprocess.run(
            [*asked, *flags], stdin=subprocess.DEVNULL, capture_output=True, timeout=max(seconds, 0.01), check=True
        )
        lines = found.stdout.decode(errors="replace").splitlines()
        named = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
        commit, branch = named.get("branch.oid"), named.get("branch.head")
        return {
            "commit": None if commit == "(initial)" else commit,
            "branch": None if branch == "(detached)" else branch,
            "has_changes": any(not line.startswith("#") for line in lines),
        }
    return None
