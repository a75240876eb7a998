"""The next 24 hours of the schedules, as an operator looks at them."""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.urls import reverse

from django_fairque.engine.model.task import Task

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from django_fairque.engine.queue.queue import FairQueue

URL = reverse("admin:django_fairque_upcoming")
GALLERY = os.environ.get("FAIRQUE_TEST_GALLERY")
BOXES = """row => {
    const strip = row.querySelector("svg").getBoundingClientRect();
    return [...row.querySelectorAll("path:not(.fq-grid)")].map(path => {
        const box = path.getBoundingClientRect();
        return [path.getAttribute("class"), (box.left - strip.left) / strip.width, box.width / strip.width];
    });
}"""


@pytest.fixture
def visit(language: str) -> dict[str, Any]:
    return {"locale": language}


@pytest.fixture
def evening(queue: FairQueue) -> float:
    """Two schedules that overlap in five hours, one of each minute, one that is paused, and scheduled tasks; returns the time in
    five hours."""
    queue.heartbeat("web-1", {"concurrency": "1", "status": "working"})
    queue.push(Task.create("acme", 3, None, name="export"))
    queue.finish(*queue.pop_batch(1, "web-1"), took=7200)
    then = (time.time() // 60 + 300) * 60
    for name, cron in (
        ("nightly-export", f"{datetime.fromtimestamp(then, timezone.utc):%M %H} * * *"),
        ("import", f"{datetime.fromtimestamp(then + 3600, timezone.utc):%M %H} * * *"),
        ("each-minute", "* * * * *"),
        ("paused", "0 4 * * *"),
    ):
        queue.schedules.add(name, task=Task.create("acme", 3, None, name="export"), cron=cron)
    queue.schedules.pause("paused", note="the shop moves")
    queue.push_batch([Task.create("acme", 3, n, execute_after=then + n) for n in range(40)])
    return then


@pytest.mark.parametrize("language", ["en", "he", "ja"])
@pytest.mark.parametrize("width", [1280, 390])
def test_runs_are_drawn_at_their_expected_times(
    evening: float, queue: FairQueue, language: str, width: int, page: Page
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(URL)
    rows = {row.locator("th").inner_text().split()[0]: row for row in page.locator(".fq-upcoming tbody tr").all()}
    boxes = {name: rows[name].evaluate(BOXES) for name in ("nightly-export", "import", "each-minute", "paused")}
    at = (evening - time.time()) / 86_400
    (run, overlap) = boxes["nightly-export"]
    assert run == ["fq-run", pytest.approx(at, abs=0.01), pytest.approx(2 / 24, abs=0.03)]  # run times of names: 20 %
    assert overlap == ["fq-overload", pytest.approx(at + 1 / 24, abs=0.01), pytest.approx(1 / 24, abs=0.03)]
    assert [kind for kind, *_ in boxes["import"]] == ["fq-run", "fq-overload"]
    ((kind, left, wide),) = boxes["each-minute"]
    assert (kind, left, wide) == ("fq-band", pytest.approx(0, abs=0.01), pytest.approx(1, abs=0.01))
    assert boxes["paused"] == []
    runs = rows["each-minute"].inner_text()
    assert "1,440" in runs or "1,441" in runs  # one more is due if a minute has begun since the schedule was declared
    assert "the shop moves" in rows["paused"].inner_text()
    strip = page.locator(".fq-strip").first.bounding_box()
    assert strip is not None
    assert strip["width"] > 300
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    labels = page.locator(".fq-hours text").evaluate_all(
        "all => all.map(label => label.getBoundingClientRect().toJSON())"
    )
    assert len(labels) >= 7
    assert all(one["right"] < other["left"] for one, other in pairwise(labels))
    if GALLERY:
        page.locator("#fq-by-hour summary").click()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=Path(GALLERY) / f"upcoming-{language}-{width}-{scheme}.png", full_page=True)
