"""The browser that tests and screenshots drive: Debian's Chromium, or another of its family. None is downloaded."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

VARIABLE = "FAIRQUE_TEST_BROWSER"
NONE = "none"
"""The value of the variable for a run without a browser."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = f"no browser: expected one of {', '.join(NAMES)} on the path, or its path in {VARIABLE}"


def executable() -> str | None:
    """Its path: `FAIRQUE_TEST_BROWSER`, else the first of `NAMES` on the path."""
    chosen = os.environ.get(VARIABLE)
    if chosen == NONE:
        return None
    if chosen and not os.access(chosen, os.X_OK):
        raise RuntimeError(f"{VARIABLE} is {chosen!r}, expected the path of a Chromium, or {NONE!r}")
    return chosen or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window; `RuntimeError` when there is none."""
    path = executable()
    if path is None:
        raise RuntimeError(MISSING)
    with sync_playwright() as playwright:
        # Chromium does not start its sandbox for root, the usual user of containers. It shows only our own pages here.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=options)
        try:
            yield browser
        finally:
            browser.close()
