"""Screenshots for the documentation, from the running demonstration:

``uv run python -m tests.screenshots`` writes them into docs/images.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chromium import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
PAGES = {"overview": "Overview", "dead-letters": "Dead letters"}
WAIT = 15
"""Seconds, in which the other users arrive."""


def main() -> None:
    command = [sys.executable, "testproject/manage.py", "demo", "--serve", "--no-browser", "--noisy", "20000"]
    demo = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        address, name, password = _told(demo)
        with chromium() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto(address)
            page.fill("#id_username", name)
            page.fill("#id_password", password)
            page.click("[type=submit]")
            page.goto(f"{address}django_fairque/queue/")
            page.wait_for_timeout(WAIT * 1000)
            for file, title in PAGES.items():
                _shoot(page, title, IMAGES / f"{file}.png")
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait()


def _told(demo: subprocess.Popen[str]) -> tuple[str, str, str]:
    """The address, the name and the password that the demonstration prints."""
    assert demo.stdout is not None
    for line in demo.stdout:
        if found := re.search(r"(http\S+) as '(\w+)' with the password '(\w+)'", line):
            return found[1], found[2], found[3]
    raise RuntimeError("the demonstration ended before it said where it is")


def _shoot(page: Page, title: str, file: Path) -> None:
    page.click(f".fq-menu a:text-is('{title}')")
    file.parent.mkdir(exist_ok=True)
    page.screenshot(path=file)


if __name__ == "__main__":
    main()
