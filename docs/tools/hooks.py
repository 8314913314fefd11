"""Hooks of the site's builder: links from a page to files outside docs/ lead to the repository.

The pages are written for a forge, where `../experiments/norm_placement` works. The site has the files of docs/ only.
With `extra.repository` of mkdocs.yml, such a link gets its address. Without, only its text stays.
"""

from __future__ import annotations

import re
from typing import Any

_FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
_OUTSIDE = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(\.\./([^)]+)\)")


def inside_links(markdown: str, repository: str) -> str:
    """Return a page of docs/ whose links to files outside of it lead to `repository`, or are text if it is empty."""

    def replaced(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        return f"[{text}]({repository.rstrip('/')}/{target})" if repository else text

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _OUTSIDE.sub(replaced, part) for part in parts)


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Return the page for the site; mkdocs calls this for every page."""
    return inside_links(markdown, config.extra.get("repository", ""))
