"""Every page on every screen: light, dark, narrow, and written from right to left."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from django.urls import reverse
from django.utils import translation
from django.utils.translation import gettext
from library.tasks import complexity_of, parse_document, report_on
from playwright.sync_api import ViewportSize

from django_fairque.admin.site import PAGES
from django_fairque.engine.inspection.worker_activity import ACTIVITY_FIELD, ReportedTask, encode_activity
from django_fairque.engine.model.task import Task
from tests.admin.dead_letters import bury
from tests.browser.page_walk import kind, questions, walk

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from django_fairque.engine.queue.queue import FairQueue
    from tests.browser.browser_errors import Watch

WIDE, NARROW = ViewportSize(width=1280, height=800), ViewportSize(width=390, height=844)
SCREENS: dict[str, tuple[ViewportSize, Literal["light", "dark"]]] = {
    "light": (WIDE, "light"),
    "dark": (WIDE, "dark"),
    "narrow": (NARROW, "light"),
}
BACKWARDS = """root => {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), found = [];
    const place = (node, at) => {
        const range = document.createRange();
        range.setStart(node, at);
        range.setEnd(node, at + 1);
        return range.getBoundingClientRect();
    };
    while (walker.nextNode()) {
        for (const id of walker.currentNode.data.matchAll(/\\b[0-9a-v]{12}[0-9a-f]{8}-[0-9a-f]{3}/g)) {
            const first = place(walker.currentNode, id.index), last = place(walker.currentNode, id.index + id[0].length - 1);
            if (first.width && first.top === last.top && first.left > last.left) {
                found.push(id[0]);
            }
        }
    }
    return found;
}"""
"""The ids whose first letter is shown to the right of their last one."""
PALE = """root => {
    document.getAnimations().forEach(each => each.finish());  // a color that is changing is not the one to judge
    const channels = color => {  // of 255; a mixed color is written as parts of 1
        const found = color.match(/[\\d.]+/g).map(Number), unit = color.startsWith("color(srgb") ? 255 : 1;
        return [...found.slice(0, 3).map(each => each * unit), ...found.slice(3)];
    };
    const over = (above, below) => {
        const alpha = above[3] ?? 1;
        return [0, 1, 2].map(index => above[index] * alpha + below[index] * (1 - alpha));
    };
    const background = element => {
        const colors = [];
        for (let each = element; each; each = each.parentElement) {
            colors.push(channels(getComputedStyle(each).backgroundColor));
        }
        return colors.reduceRight((below, above) => over(above, below), [255, 255, 255]);
    };
    const luminance = color => color.slice(0, 3).map(each => each / 255)
        .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
        .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
    const found = [];
    for (const element of root.querySelectorAll("*:not(svg *, option)")) {
        const text = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data.trim()).join("");
        const style = getComputedStyle(element);
        if (!text || element.disabled || !element.checkVisibility({visibilityProperty: true, opacityProperty: true})) {
            continue;
        }
        const below = background(element), [one, other] = [luminance(over(channels(style.color), below)), luminance(below)];
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (contrast < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) {
            found.push(`${text.slice(0, 40)} (${contrast.toFixed(1)})`);
        }
    }
    return found;
}"""
"""Texts whose contrast to their background is less than WCAG's level AA wants, 4.5 or 3 for large ones."""
RESET = """
@layer reset {
    body { margin: 0; background: #fff; color: #374151; }
    .dark body { background: #111827; color: #d1d5db; }
    h1, h2, h3 { margin: 0; font: inherit; }
    a { color: inherit; text-decoration: none; }
    svg { display: block; }
}"""
"""A theme as those on Tailwind are, in place of Django's stylesheets."""
BOOTSTRAP = """
:root { --bs-link-color: #0d6efd; --bs-body-color: #212529; --bs-body-bg: #f8f9fa; --bs-code-color: #d63384; }
[data-bs-theme="dark"] { --bs-link-color: #6ea8fe; --bs-body-color: #dee2e6; --bs-body-bg: #2b3035; --bs-code-color: #e685b5; }
body { margin: 0; background: var(--bs-body-bg); color: var(--bs-body-color); }
a { color: var(--bs-link-color); }
code { color: var(--bs-code-color); }
svg { vertical-align: middle; }"""
"""The colors of jazzmin, in place of Django's stylesheets."""
DIFFERS = """root => {
    const style = selector => getComputedStyle(root.querySelector(selector));
    const sample = getComputedStyle(root.querySelector(".fq-line"), "::before").borderTopStyle;
    return [style("h2").fontWeight, sample, style("th > a").color !== style("th").color];
}"""
BREADCRUMBS = """body => {
    body.classList.add("admin-interface");
    body.innerHTML = '<ol class="breadcrumbs"><li><a href="/">A</a></li><li aria-current="page">B</li></ol>';
    const list = body.querySelector("ol.breadcrumbs"), link = list.querySelector("a");
    const separators = [...list.children].map(each => getComputedStyle(each, "::after").content !== "none");
    const style = getComputedStyle(list);
    return [style.listStyleType, style.backgroundColor, style.color, getComputedStyle(link).color, ...separators];
}"""
GALLERY = os.environ.get("FAIRQUE_TEST_GALLERY")
"""A directory in which a look of every page stays, for somebody to go through: in Japanese too, which runs as English does."""


def beat(queue: FairQueue) -> None:
    """A worker is alive: said again and again, because one that falls silent is forgotten."""
    info = {"host": "web-1.example", "pid": "4711", "users": "*", "status": "working"}
    for task in queue.tasks("started", limit=1):
        line = "shop_backend/orders/management/exports.py:30 wait_for_a_lock_of_the_customer"
        running = ReportedTask(task.task_id, task.name, task.user_id, time.time() - 600, line=line)
        slots = [([task.user_id] * 60, running), ([""] * 60, None)]
        info[ACTIVITY_FIELD] = encode_activity(time.time(), slots).decode()
    queue.heartbeat("web-1.example:4711", info)


@pytest.fixture
def full(queue: FairQueue) -> None:
    """Something of everything."""
    beat(queue)
    queue.schedules.add("nightly-report", task=Task.create("acme", 3, None, name="shop.report"), cron="30 4 * * 1-5")
    for number in range(7):
        bury(queue, ValueError(f"'nobody-{number}@' is no address"), payload={"args": ["x" * 300], "api_token": "t0p"})
    for number in range(5):
        queue.push(Task.create("a-customer-with-a-long-name.example", 3, {"order": 7}, name="shop.orders.tasks.send"))
        (lease,) = queue.pop_batch(1, "web-1.example:4711")
        if number % 2:
            queue.finish(lease, {"sent": number})
        else:
            queue.set_progress(lease, number, 10, "rendered")
    (parse_document.s("json", 1) >> complexity_of.s("json") >> report_on.s("json")).enqueue()
    queue.push_batch([Task.create("noisy", 1 + number % 6, number, name="shop.index") for number in range(60)])
    queue.push(Task.create("acme", 3, None, execute_after=4_000_000_000.0))
    queue.cancel(queue.push(Task.create("acme", 3, None)).task_id, reason="no more wanted")
    queue.user("acme").set_max_running(1)
    queue.user("acme").pause()
    queue.user("acme").set_organization("an-organisation-with-a-long-name.example")
    queue.organization("an-organisation-with-a-long-name.example").set_max_running(1000)
    queue.user("noisy").set_organization("sales")
    queue.organization("sales").pause()
    queue.incidents.open_limit("failures", "12 tasks failed in the last minute")


@pytest.fixture
def visit(language: str) -> dict[str, Any]:
    return {"locale": language}


@pytest.mark.parametrize("language", ["en", "he", *(["ja"] if GALLERY else [])])
def test_every_page_looks_right_in_every_language(
    full: None, queue: FairQueue, language: str, page: Page, watch: Watch
) -> None:
    urls, confirmed = [], set[str]()
    for url in walk(page):
        beat(queue)
        urls.append(url)
        look(page, language, url, watch)
    for url in urls:
        beat(queue)
        for where in questions(page, url, confirmed):
            look(page, language, where, watch)
    seen = {kind(url)[0].removeprefix("django_fairque_") for url in urls}
    assert seen == {page.name for page in PAGES} | {"outboxentry_changelist"}
    with translation.override(language):
        known = {gettext(label) for label in ("Discard…", "Edit the payload and requeue…", "Stop…", "Purge…")}
    assert known <= {where.split(": ")[1] for where in confirmed}


@pytest.mark.parametrize("language", ["en"])
def test_the_pages_look_right_under_a_theme_without_djangos_colors(full: None, page: Page) -> None:
    page.route("**/static/admin/css/**", lambda route: route.fulfill(body=RESET, content_type="text/css"))
    page.goto("/admin/django_fairque/queue/overview/")
    content = page.locator("#fq-content")
    assert content.evaluate(DIFFERS) == ["700", "solid", True]
    assert content.evaluate(PALE) == []
    page.locator("html").evaluate("root => root.classList.add('dark')")
    assert content.evaluate(PALE) == []
    colors = ["rgb(38, 75, 93)", "rgb(255, 255, 255)", "rgb(255, 255, 255)"]
    assert page.locator("body").evaluate(BREADCRUMBS) == ["none", *colors, True, False]


@pytest.mark.parametrize("language", ["en"])
@pytest.mark.parametrize("name", ["overview", "tasks", "schedules", "model_events", "users"])
def test_bootstraps_colors_are_not_too_pale(full: None, page: Page, name: str) -> None:
    page.route("**/static/admin/css/**", lambda route: route.fulfill(body=BOOTSTRAP, content_type="text/css"))
    page.goto(reverse(f"admin:django_fairque_{name}"))
    for mode in ("light", "dark"):
        page.locator("html").evaluate("(root, mode) => root.setAttribute('data-bs-theme', mode)", mode)
        pale = page.locator(".fq-top, .fq-menu, #fq-content").evaluate_all(f"all => all.flatMap({PALE})")
        assert (mode, pale) == (mode, [])
    borders = "all => all.map(each => getComputedStyle(each).borderStyle)"
    assert {*page.locator(".fq-menu .button, #fq-content .button").evaluate_all(borders)} == {"none"}


def look(page: Page, language: str, where: str, watch: Watch) -> None:
    """Report pages that are wider than a screen, or whose text does not run in the direction of its language."""
    root = page.locator("html")
    for screen, (size, scheme) in SCREENS.items():
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=scheme)
        width, room = root.evaluate("root => [root.scrollWidth, root.clientWidth]")
        if width > room:
            watch.complaints.append(f"{where} is {width} pixels wide, on a screen of {room}")
        if language == "en" and size is WIDE:
            pale = page.locator(".fq-top, .fq-menu, #fq-content").evaluate_all(f"all => all.flatMap({PALE})")
            watch.complaints += [f"{where}, {screen}: too pale: {text}" for text in pale]
        if GALLERY:
            name = re.sub(r"[^a-z0-9]+", "-", where.lower())[-90:].strip("-")
            page.screenshot(path=Path(GALLERY) / f"{language}-{screen}" / f"{name}.png", full_page=True)
    if root.get_attribute("dir") != ("rtl" if language == "he" else "ltr"):
        watch.complaints.append(f"{where} does not run in the direction of its language")
    if backwards := page.locator("#fq-content").evaluate_all(f"all => all.flatMap({BACKWARDS})"):
        watch.complaints.append(f"{where} shows from right to left: {backwards}")
