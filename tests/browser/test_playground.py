"""The simulation of the documentation starts the same tasks as the engine, and its page can be used and shared."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from django_fairque.engine.model.lanes import LANES, Lane
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from tests.docs.blocks import DOCS, ROOT
from tests.docs.test_site import PLAIN
from tests.engine.conftest import NOW, task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page
    from redis import Redis

RUN_SCRIPT = """({weights, slots, steps}) => {
    const order = new FairOrder(), running = [], starts = [];
    for (const [user, weight] of Object.entries(weights)) order.addUser(user, weight);
    for (const [action, ...details] of steps) {
        if (action === "push") order.push(...details);
        else if (action === "finish" && running.length) order.finish(running.splice(details[0] % running.length, 1)[0]);
        else if (action === "start" && running.length < slots) {
            const start = order.start();
            starts.push(start && [start.user, start.lane]);
            if (start) running.push(start);
        }
    }
    return starts;
}"""


def make_script(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    lanes: list[Lane] = chance.choice([["normal"], ["normal", "bulk"], ["urgent", "normal"], list(LANES), list(LANES)])
    weights = {f"u{number}": chance.choice([0.5, 1, 1, 2, 4]) for number in range(chance.randint(2, 8))}
    steps: list[tuple[Any, ...]] = []
    for action in chance.choices(["push", "start", "finish"], weights=[2, 4, 3], k=300):
        details = (chance.choice(list(weights)), chance.choice(lanes), chance.choice([1, 1, 2, 10]))
        steps.append((action, *details) if action == "push" else (action, chance.randrange(1000)))
    return {"weights": weights, "slots": chance.choice([1, 3, 8, 16]), "steps": steps}


def run_on_the_server(redis: Redis, script: dict[str, Any]) -> list[list[str] | None]:
    redis.flushall()
    queue = FairQueue(redis, config=QueueConfig(fair_by="tasks"))
    for user, weight in script["weights"].items():
        queue.user(user).set_weight(weight, now=NOW)
    running, starts = list[Lease](), list[list[str] | None]()
    for action, *details in script["steps"]:
        if action == "push":
            user, lane, number = details
            queue.push_batch([task(user, lane=lane) for _ in range(number)], now=NOW)
        elif action == "finish" and running:
            queue.finish(running.pop(details[0] % len(running)), now=NOW)
        elif action == "start" and len(running) < script["slots"]:
            leases = queue.pop_batch(1, "w", now=NOW)
            starts += [[lease.user_id, lease.lane] for lease in leases] or [None]
            running += leases
    return starts


@pytest.mark.parametrize("seed", range(12))
def test_the_simulation_starts_the_same_tasks_as_the_engine(browser: Browser, redis: Redis, seed: int) -> None:
    script = make_script(seed)
    tab = browser.new_page()
    tab.add_script_tag(path=DOCS / "_static" / "fair_order.js")
    simulated = tab.evaluate(RUN_SCRIPT, script)
    tab.close()
    assert len(simulated) > 50
    assert simulated == run_on_the_server(redis, script)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with the first page and the playground alone: links to other pages lead nowhere."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for page in ("index.md", "quickstart.md", "playground.md"):
        shutil.copy(DOCS / page, source)
    command = [sys.executable, "-m", "sphinx", "-Q", "-c", str(DOCS), str(source), str(out)]
    subprocess.run(command, cwd=ROOT, env=PLAIN, check=True, timeout=120)
    return out


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A tab in which no page reports an error."""
    tab, errors = browser.new_page(), list[str]()
    tab.on("pageerror", lambda error: errors.append(str(error)))
    yield tab
    tab.close()
    assert errors == []


def test_a_change_by_keyboard_changes_the_result_and_the_address(tab: Page, site: Path) -> None:
    tab.goto(f"{site.as_uri()}/playground.html")
    result = tab.get_by_role("status")
    expect(result).to_have_text(
        "99 % of the mails start within 0.7 s with fair turns and lanes, and within 109 s first come, first served."
    )
    expect(tab.get_by_role("img", name="the running tasks of each customer over time")).to_have_count(2)
    tab.get_by_label("Slots of the workers").press("ArrowRight")
    tab.get_by_label("Use lanes").press("Space")
    expect(result).to_contain_text("with fair turns,")
    expect(tab.get_by_role("link", name="Address of this simulation")).to_have_attribute(
        "href", "#customers=40&tasks=300&slots=5&nightly=5&seed=1&lanes=0"
    )
    expect(tab).to_have_url(f"{site.as_uri()}/playground.html#customers=40&tasks=300&slots=5&nightly=5&seed=1&lanes=0")
    shown = tab.locator("#playground-form table").inner_text()
    tab.reload()
    expect(tab.get_by_label("Slots of the workers")).to_have_value("5")
    assert tab.locator("#playground-form table").inner_text() == shown
    tab.get_by_role("button", name="Default values").click()
    expect(result).to_contain_text("within 109 s first come")


@pytest.mark.parametrize("values", ["customers=1e9&tasks=-1&slots=<b>&seed=", "customers=2&tasks=0&nightly=0", "x"])
def test_wrong_or_small_values_in_an_address_do_no_harm(tab: Page, site: Path, values: str) -> None:
    tab.goto(f"{site.as_uri()}/playground.html#{values}")
    expect(tab.get_by_role("status")).to_contain_text("99 % of the mails start within")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_playground_fits_a_narrow_screen_with_colors_that_are_seen(tab: Page, site: Path, scheme: Any) -> None:
    tab.set_viewport_size({"width": 390, "height": 800})
    tab.emulate_media(color_scheme=scheme)
    tab.goto(f"{site.as_uri()}/playground.html")
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")
    background = tab.locator("#play-fair svg").evaluate("drawing => getComputedStyle(drawing).backgroundColor")
    for path in tab.locator("#play-fair path").all():
        color = path.evaluate("path => getComputedStyle(path).stroke")
        assert contrast(color, background) >= 3


def contrast(color: str, other: str) -> float:
    """Return the ratio of two colors as the WCAG define it."""
    bright, dark = sorted((luminance(color), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    parts = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_link_to_the_quickstart_on_the_first_page_is_a_button(tab: Page, site: Path) -> None:
    tab.goto(f"{site.as_uri()}/index.html")
    link = tab.get_by_role("link", name="Try it in five minutes")
    assert link.evaluate("link => getComputedStyle(link).backgroundColor") == "rgb(12, 75, 51)"
