"""HTML whose text is escaped by construction."""

from __future__ import annotations

import html

_VOID = ("img", "link", "meta", "source")


class Html(str):
    """Markup; any other text becomes it by being escaped."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str) -> Html:
    """An element. Children that are no markup are text; an attribute may end in `_` where its name is a word of Python,
    and `_` within stands for `-`."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for name, value in attributes.items()
    )
    if tag in _VOID:
        return Html(f"<{tag}{named}>")
    return Html(f"<{tag}{named}>{joined(*children)}</{tag}>")


def joined(*children: str) -> Html:
    return Html("".join(child if isinstance(child, Html) else html.escape(child, quote=False) for child in children))


def table(caption: str, head: list[list[Html]], body: list[list[Html]], label: str) -> Html:
    """Rows of th and td, in a container of its own that scrolls if the table is wider than the page.

    Args:
      label: of the container, which is in the order of the keyboard so that it can be scrolled.
    """
    rows = [joined(*(element("tr", *cells) for cells in part)) for part in (head, body)]
    content = element(
        "table", element("caption", element("span", caption)), element("thead", rows[0]), element("tbody", rows[1])
    )
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=label)
