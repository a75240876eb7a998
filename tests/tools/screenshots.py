"""Pictures for the documentation, from the running demonstration:

``uv run --with pillow python -m tests.tools.screenshots`` writes them into docs/images: a picture of some pages, and 15 seconds
of *Live* as an animation.
"""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chromium import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
PAGES = {"overview": "Overview", "dead-letters": "Dead letters"}
WAIT_SECONDS = 75
"""Until the noisy user has sent a burst, and the last minute of each slot is full."""
ANIMATION_SECONDS = 15
FRAME_SECONDS = 1.0


def main() -> None:
    command = [
        sys.executable,
        "testproject/manage.py",
        "demo",
        "--serve",
        "--no-browser",
        "--packages",
        "json,html,email",
    ]
    demo = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        address, name, password = _login(demo)
        IMAGES.mkdir(exist_ok=True)
        with chromium() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto(address)
            page.fill("#id_username", name)
            page.fill("#id_password", password)
            page.click("[type=submit]")
            page.goto(f"{address}django_fairque/queue/live/")
            page.wait_for_timeout(WAIT_SECONDS * 1000)
            _animate(page, IMAGES / "live.webp")
            for file, title in PAGES.items():
                page.click(f".fq-menu a:text-is('{title}')")
                page.screenshot(path=IMAGES / f"{file}.png")
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait()


def _login(demo: subprocess.Popen[str]) -> tuple[str, str, str]:
    """The address, the name and the password that the demonstration prints."""
    assert demo.stdout is not None
    for line in demo.stdout:
        if found := re.search(r"(http\S+) as '(\w+)' with the password '(\w+)'", line):
            return found[1], found[2], found[3]
    raise RuntimeError("the demonstration ended before it printed its address")


def _animate(page: Page, file: Path) -> None:
    """Write a picture of each second of the page's content; each frame holds what differs from the one before."""
    from PIL import Image  # type: ignore[import-not-found, unused-ignore]

    frames = []
    for _ in range(round(ANIMATION_SECONDS / FRAME_SECONDS)):
        frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        page.wait_for_timeout(FRAME_SECONDS * 1000)
    first, *others = frames
    first.save(
        file,
        save_all=True,
        append_images=others,
        duration=round(FRAME_SECONDS * 1000),
        loop=0,
        lossless=True,
        method=4,
        minimize_size=True,
    )


if __name__ == "__main__":
    main()
