"""Hooks of the site's builder: links and pictures from outside docs/, and tables that scroll.

The pages are written for a forge, where `../experiments/norm_placement` works. The site has the files of docs/, and a
copy of every picture from outside that a page shows. Other links to files outside get the address of the repository,
`extra.repository` of mkdocs.yml. Without an address, only their text stays.

A forge lets a table that is wider than the window scroll in its place. Here it gets a box for that; docs/site.css has
its style.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[2]
_COPIES = "outside"

_FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
_PICTURE = re.compile(r"(!\[[^\]]*\]\()\.\./([^)]+)\)")
_OUTSIDE = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(\.\./([^)]+)\)")


def inside_links(markdown: str, repository: str) -> str:
    """Return a page of docs/ whose links to files outside of it lead to `repository`, or are text if it is empty.

    Pictures from outside are those below `outside/`, where `on_files` puts them.
    """

    def replaced(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        return f"[{text}]({repository.rstrip('/')}/{target})" if repository else text

    parts = _FENCE.split(markdown)
    return "".join(
        part if part.startswith("```") else _OUTSIDE.sub(replaced, _PICTURE.sub(rf"\1{_COPIES}/\2)", part))
        for part in parts
    )


def pictures_outside(markdown: str) -> Iterator[str]:
    """Yield the pictures that a page shows from outside docs/, as paths from the root of the repository."""
    for part in _FENCE.split(markdown):
        if not part.startswith("```"):
            yield from (match[2] for match in _PICTURE.finditer(part))


def scrolling_tables(html: str) -> str:
    """Return the HTML of a page with every table in a box that scrolls, by keyboard too."""
    box = '<div class="table-scroll" role="region" aria-label="table" tabindex="0">'
    return html.replace("<table>", f"{box}<table>").replace("</table>", "</table></div>")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pictures from outside docs/; mkdocs calls this once."""
    pages = [_ROOT / "docs" / page.src_uri for page in files.documentation_pages()]
    for picture in sorted({picture for page in pages for picture in pictures_outside(page.read_text())}):
        files.append(File.generated(config, f"{_COPIES}/{picture}", abs_src_path=str(_ROOT / picture)))
    return files


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Return the page for the site; mkdocs calls this for every page."""
    return inside_links(markdown, config.extra.get("repository", ""))


def on_page_content(html: str, **_: Any) -> str:
    """Return the HTML of the page's text; mkdocs calls this for every page."""
    return scrolling_tables(html)
