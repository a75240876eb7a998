"""The graph of a run moves and zooms: with the mouse, the wheel, buttons, keys and fingers, and live updates keep its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from django_fairque.admin.status_line import status_probe
from django_fairque.engine.model.task import Task
from tests.browser.test_refreshing import refresh

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

ADDRESS = "/admin/django_fairque/queue/dependencies/?run=r1"


@pytest.fixture(autouse=True)
def status_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_probe, "keep_seconds", 0.0)


@pytest.fixture
def run(queue: FairQueue) -> None:
    """Ten layers, the widest of 15 tasks: wider and higher than the window."""
    tasks = [Task.create("acme", 3, None, task_id="task-0", name="shop.first")]
    for layer in range(1, 10):
        width = 15 if layer == 5 else 2
        tasks += [
            Task.create("acme", 3, None, task_id=f"task-{layer}-{number}", depends_on=[tasks[-1].task_id])
            for number in range(width)
        ]
    queue.push_graph(tasks, "r1")


def view(page: Page) -> list[float]:
    """Return the left and upper edge of the visible part, its width and its height, in units of the drawing."""
    return [float(number) for number in (page.locator("svg.fq-graph").get_attribute("viewBox") or "").split()]


def middle(page: Page) -> tuple[float, float]:
    box = page.locator("svg.fq-graph").bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.fixture
def graph(page: Page, run: None) -> Page:
    page.clock.install()
    page.goto(ADDRESS)
    expect(page.get_by_role("button", name="Zoom in")).to_be_visible()
    page.locator("svg.fq-graph").scroll_into_view_if_needed()
    return page


def test_dragging_moves_the_graph_and_opens_no_task(graph: Page) -> None:
    before, (x, y) = view(graph), middle(graph)
    graph.mouse.move(x, y)
    graph.mouse.down()
    graph.mouse.move(x + 100, y + 50, steps=4)
    graph.mouse.up()
    after = view(graph)
    assert after[0] < before[0] - 90
    assert after[1] < before[1] - 40
    assert after[2:] == before[2:]
    box = graph.locator("svg.fq-graph a").filter(has_text="first").bounding_box()
    assert box is not None
    graph.mouse.move(box["x"] + 10, box["y"] + 10)
    graph.mouse.down()
    graph.mouse.move(box["x"] + 60, box["y"] + 10, steps=4)
    graph.mouse.up()
    assert graph.url.endswith(ADDRESS)
    graph.locator("svg.fq-graph a").filter(has_text="first").click()
    graph.wait_for_url("**/tasks/id-**")


def test_ctrl_and_the_wheel_zoom_around_the_pointer(graph: Page) -> None:
    before, (x, y) = view(graph), middle(graph)
    graph.mouse.move(x, y)
    graph.mouse.wheel(0, 300)
    assert view(graph) == before, "without Ctrl the page scrolls"
    graph.locator("svg.fq-graph").scroll_into_view_if_needed()
    x, y = middle(graph)
    graph.mouse.move(x, y)
    graph.keyboard.down("Control")
    graph.mouse.wheel(0, -200)
    graph.keyboard.up("Control")
    after = view(graph)
    assert after[2] < 0.8 * before[2]
    assert after[0] + after[2] / 2 == pytest.approx(before[0] + before[2] / 2, abs=2)


def test_buttons_and_keys_zoom_and_move(graph: Page) -> None:
    first = view(graph)
    graph.get_by_role("button", name="Zoom in").click()
    assert view(graph)[2] == pytest.approx(first[2] / 1.25, rel=0.01)
    graph.get_by_role("button", name="Zoom out").click()
    assert view(graph)[2] == pytest.approx(first[2], rel=0.01)
    graph.get_by_role("button", name="Show all").click()
    width = float(graph.locator("svg.fq-graph").get_attribute("width") or 0)
    assert view(graph)[2] >= width
    graph.locator(".fq-graph-view").focus()
    graph.keyboard.press("+")
    before = view(graph)
    graph.keyboard.press("ArrowRight")
    graph.keyboard.press("ArrowDown")
    after = view(graph)
    assert after[0] > before[0]
    assert after[1] > before[1]
    graph.keyboard.press("0")
    assert view(graph)[2] >= width


def test_a_focused_task_scrolls_into_view(graph: Page) -> None:
    graph.locator("svg.fq-graph a").last.focus()
    expect(graph.locator("svg.fq-graph a").last).to_be_in_viewport()


def test_a_live_update_keeps_the_zoom_of_the_graph(graph: Page, queue: FairQueue) -> None:
    graph.get_by_role("button", name="Zoom in").click()
    before = view(graph)
    lease = queue.pop("w")
    assert lease is not None
    refresh(graph)
    expect(graph.locator(".fq-box[data-state=started]")).to_have_count(1)
    assert view(graph) == before


@pytest.mark.parametrize(
    "visit", [{"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}], ids=["phone"]
)
def test_fingers_move_and_zoom_the_graph_on_a_phone(graph: Page, visit: dict[str, Any]) -> None:
    before, (x, y) = view(graph), middle(graph)
    session = graph.context.new_cdp_session(graph)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        found = [{"x": x + dx, "y": y + dy, "id": number} for number, (dx, dy) in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": found})

    touch("touchStart", (0, 0))
    for step in range(1, 6):
        touch("touchMove", (-15 * step, -10 * step))
    touch("touchEnd")
    moved = view(graph)
    assert moved[0] > before[0] + 20
    assert moved[1] > before[1] + 10
    touch("touchStart", (-30, 0), (30, 0))
    for step in range(1, 6):
        touch("touchMove", (-30 - 10 * step, 0), (30 + 10 * step, 0))
    touch("touchEnd")
    assert view(graph)[2] < 0.7 * moved[2]


@pytest.mark.parametrize("visit", [{"java_script_enabled": False}], ids=["no script"])
def test_the_graph_is_shown_whole_without_javascript(page: Page, run: None, visit: dict[str, Any]) -> None:
    page.goto(ADDRESS)
    expect(page.locator("svg.fq-graph a").first).to_be_visible()
    expect(page.get_by_role("button", name="Zoom in")).to_have_count(0)
    width = float(page.locator("svg.fq-graph").get_attribute("width") or 0)
    box = page.locator("svg.fq-graph").bounding_box()
    assert box is not None
    assert box["width"] == width
