"""The installed Chromium, driven by playwright: for docs/tools/gallery.py and for the tests of pages.

No browser is downloaded.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
"""Programs that are looked for in PATH, the first one first."""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
MISSING = (
    f"no browser found: PATH has none of {', '.join(NAMES)}. Install Chromium, on Debian or Ubuntu with "
    "`apt-get install chromium`, or put a folder with a program of one of these names into PATH"
)


class MissingToolError(Exception):
    """The browser, or the library that drives it, is not installed; the message says how to get it."""


def find() -> str | None:
    """Return the path of the browser, None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser(profile: Path) -> Generator[Any]:
    """Open the browser with the empty folder `profile` for its files; yield playwright's `BrowserContext`.

    Raises: MissingToolError without a browser or without playwright.
    """
    program = find()
    if program is None:
        raise MissingToolError(MISSING)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise MissingToolError(
            "the Python package playwright is not installed. `make install` installs it; or: pip install playwright"
        ) from None
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(profile, executable_path=program, args=list(FLAGS))
        try:
            yield context
        finally:
            context.close()
