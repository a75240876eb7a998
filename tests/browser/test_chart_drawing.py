"""Charts are drawn by a script, with the values under the pointer, and are renewed with the page."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Page, expect

from django_fairque.engine.model.task import Task
from tests.browser.test_refreshing import refresh

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue

OVERVIEW = "/admin/django_fairque/queue/overview/"
PIXELS = """canvas => new Uint32Array(
    canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer
).filter(pixel => pixel).length"""
"""A function that counts the pixels that are drawn."""
IS_BLANK = """canvas => !new Uint32Array(
    canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer
).some(pixel => pixel)"""


def test_the_chart_shows_the_value_under_the_pointer(page: Page, queue: FairQueue) -> None:
    now = time.time()
    queue.push_batch([Task.create("a", 3, n) for n in range(1234)], now=now - 300)
    for at in range(-240, 0, 60):
        queue.sweep(now=now + at)
    page.clock.install()
    page.goto(OVERVIEW)
    charts = page.locator(".fq-chart canvas")
    expect(charts).to_have_count(5)
    assert not any(charts.nth(index).evaluate(IS_BLANK) for index in range(5))
    backlog = page.locator(".fq-chart").first
    area = backlog.locator(".u-over")
    box = area.bounding_box()
    assert box is not None
    area.hover(position={"x": box["width"] - 1, "y": 20})
    expect(backlog.locator(".fq-readout")).to_have_text(re.compile(r"\d\d:\d\d  ·  Queued: 1,234$"))
    queue.push(Task.create("a", 3, 1))
    refresh(page)
    area.hover(position={"x": box["width"] - 1, "y": 20})
    expect(backlog.locator(".fq-readout")).to_have_text(re.compile("Queued: 1,235$"))
    expect(charts).to_have_count(5)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    expect(charts).to_have_count(5)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")


def test_deployments_are_marked_and_named_under_the_pointer(page: Page, queue: FairQueue, redis: Redis) -> None:
    now = time.time()
    queue.push(Task.create("a", 3, 1), now=now - 3000)
    queue.heartbeat("w", {"code_version": "<b>abc1234"}, now=now - 1800)
    page.goto(OVERVIEW)
    backlog = page.locator(".fq-chart").first
    area = backlog.locator(".u-over")
    box = area.bounding_box()
    assert box is not None
    expect(backlog.locator(".fq-legend")).to_contain_text("Deployment")
    area.hover(position={"x": box["width"] * 0.25, "y": 20})
    expect(backlog.locator(".fq-readout")).to_have_text(re.compile(r"Queued: 1$"))
    begins = json.loads(page.locator(".fq-charts").first.get_attribute("data-charts") or "")["times"]
    area.hover(position={"x": box["width"] * (now - 1800 - begins[0]) / (begins[-1] - begins[0]), "y": 20})
    expect(backlog.locator(".fq-readout")).to_have_text(re.compile(r"  ·  deployment <b>abc1234, \d\d:\d\d$"))
    page.get_by_text("Figures").click()
    expect(page.locator("#fq-figures li")).to_have_text(re.compile(r"^deployment <b>abc1234, \d\d:\d\d$"))
    canvas = backlog.locator("canvas")
    with_mark = canvas.evaluate(PIXELS)
    redis.delete("fq:{default:0}:deployments")
    refresh(page)
    expect(backlog.locator(".fq-legend")).not_to_contain_text("Deployment")
    assert with_mark > backlog.locator("canvas").evaluate(PIXELS)


def test_sparklines_are_drawn_and_kept_when_nothing_has_changed(page: Page, queue: FairQueue) -> None:
    now = time.time()
    queue.push_batch([Task.create("a", 3, n) for n in range(9)], now=now - 300)
    for lease in queue.pop_batch(9, "w", now=now - 300):
        queue.finish(lease, took=1, now=now - 300)
    page.clock.install()
    page.goto("/admin/django_fairque/queue/queues/")
    line = page.get_by_role("row", name="default").locator(".fq-spark canvas")
    assert not line.evaluate(IS_BLANK)
    line.evaluate("canvas => { canvas.id = 'same'; }")
    refresh(page)
    expect(line).to_have_id("same")


@pytest.mark.parametrize("visit", [{"java_script_enabled": False}], ids=["no script"])
def test_charts_without_scripts_are_a_sentence_and_a_table(page: Page, queue: FairQueue) -> None:
    queue.push_batch([Task.create("a", 3, n) for n in range(1234)])
    page.goto(OVERVIEW)
    expect(page.locator("canvas")).to_have_count(0)
    expect(page.locator(".fq-chart").first).to_contain_text("Queued: at most 1,234, 1,234 at last")
    page.get_by_text("Figures").click()
    table = page.get_by_role("table", name="The values of the charts")
    expect(table.get_by_role("columnheader", name="Queued")).to_be_visible()
    expect(table.locator("tbody tr").first.locator("td").first).to_have_text("1,234")
