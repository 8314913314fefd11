"""The digests of embedded corpora that were rendered before, in the user's cache folder.

Rendering 200,000 pairs takes ten seconds or more. A run that resumes needs only the digest of their text: its tokens
are in the token cache.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.host.files import json_sha256, json_text, replace_file, user_cache, with_checksum, without_checksum
from transformer_jax.readers import read_bytes, read_json

_DIGEST = re.compile(r"[0-9a-f]{64}")


def read_digest(corpus: Mapping[str, Any]) -> str | None:
    """Return the sha256 of the text of a corpus that this version of the code has rendered; None if it is not known.

    Args:
      corpus: what the text follows from, apart from the code: locales, sizes, seed and versions of libraries.
    """
    path = _path(corpus)
    if path is None:
        return None
    try:
        found = without_checksum(read_json(path))
    except (OSError, ValueError, AttributeError):
        return None
    digest = found.get("sha256")
    return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None


def write_digest(corpus: Mapping[str, Any], sha256: str) -> None:
    """Store the sha256 of a corpus for `read_digest`, if the folder can be written."""
    path = _path(corpus)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json_text(with_checksum({"sha256": sha256, "corpus": dict(corpus)})) + "\n").encode())


def _path(corpus: Mapping[str, Any]) -> Path | None:
    folder = user_cache()
    key = json_sha256({"corpus": dict(corpus), "code": _code(), "python": [*sys.version_info[:2]]})
    return None if folder is None else folder / f"embedded-{key[:24]}.json"


@functools.cache
def _code() -> str:
    """Return the digest of the modules that render sentences."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + read_bytes(path))
    return digest.hexdigest()
