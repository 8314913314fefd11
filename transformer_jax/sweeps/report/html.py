"""HTML in which all text is escaped: only `Html` is taken as markup."""

from __future__ import annotations

import html

_VOID = ("img", "link", "meta", "source")


class Html(str):
    """Markup. Any other string is escaped when it is inserted."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str) -> Html:
    """Return an element. Children that are not `Html` are text.

    In names of attributes, `_` stands for `-`, and a final `_` (`class_`) is dropped.
    """
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for name, value in attributes.items()
    )
    if tag in _VOID:
        return Html(f"<{tag}{named}>")
    return Html(f"<{tag}{named}>{html_of(*children)}</{tag}>")


def html_of(*children: str) -> Html:
    return Html("".join(child if isinstance(child, Html) else html.escape(child, quote=False) for child in children))


def head_cell(text: str) -> Html:
    return element("th", text, scope="col")


def table(caption: str, head: list[list[Html]], body: list[list[Html]], label: str) -> Html:
    """Return a table of th and td cells, in a container that scrolls if the table is wider than the page.

    A column is sorted by the attribute `data-value` of its cells, empty for a missing number, or by their text.
    Rows can be filtered by columns whose head has `data-filter`. The cells before the first td name the row.

    Args:
      label: ARIA label of the container; it can have the keyboard focus, so that it can be scrolled by keys.
    """
    rows = [html_of(*(element("tr", *cells) for cells in part)) for part in (head, body)]
    content = element(
        "table", element("caption", element("span", caption)), element("thead", rows[0]), element("tbody", rows[1])
    )
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=label)
