"""The bounds of the rule for lanes, shown with the oracle alone."""

from __future__ import annotations

import random
from collections import Counter, deque

from .oracle import FairOrder, Lane, Start

SLOTS = 16


def serve(order: FairOrder, starts: int, running: deque[Start]) -> list[Start]:
    """Start tasks in ``SLOTS`` slots; each runs until the slots are full."""
    started = []
    for _ in range(starts):
        if len(running) == SLOTS:
            order.finish(running.popleft())
        start = order.start()
        assert start is not None
        running.append(start)
        started.append(start)
    return started


def test_a_user_with_only_urgent_tasks_gets_little_more_than_other_users() -> None:
    order = FairOrder()
    for number in range(10):
        order.add_user(f"u{number}")
        order.push(f"u{number}", "normal" if number else "urgent", 1000)
    turns = Counter(start.user.name for start in serve(order, 3000, deque()))
    assert turns["u0"] <= 10 + max(turns[f"u{number}"] for number in range(1, 10))


def test_a_member_that_marks_all_tasks_urgent_gets_little_more_than_the_other_members() -> None:
    order = FairOrder()
    order.add_organization("o")
    for number in range(4):
        order.add_user(f"m{number}", "o")
        order.push(f"m{number}", "normal" if number else "urgent", 1000)
    order.add_user("alone")
    order.push("alone", "normal", 3000)
    turns = Counter(start.user.name for start in serve(order, 2000, deque()))
    assert turns["m0"] <= 11 + max(turns[f"m{number}"] for number in range(1, 4))
    assert 980 <= turns["alone"] <= 1020


def test_each_lane_with_waiting_tasks_gets_its_least_share() -> None:
    """Urgent tasks for more than all slots, by ten users; 20 users wait in lane normal, and 5 in lane bulk."""
    order, chance, running = FairOrder(), random.Random(3), deque[Start]()
    waiting: dict[Lane, int] = {"normal": 20, "bulk": 5}
    for lane, users in waiting.items():
        for number in range(users):
            order.add_user(f"{lane}{number}")
            order.push(f"{lane}{number}", lane, 3000)
    for number in range(10):
        order.add_user(f"urgent{number}")
    lanes: Counter[str] = Counter()
    for _ in range(3000):
        order.push(f"urgent{chance.randrange(10)}", "urgent", chance.choice([1, 1, 1, 1, 2]))
        lanes.update(start.lane for start in serve(order, 1, running))
    assert lanes["normal"] >= 0.5 * 3000 - 10
    assert 0.05 * 3000 - 10 <= lanes["bulk"] <= 0.05 * 3000 + 10


def test_a_bulk_user_gets_no_credit_for_missed_service() -> None:
    """A user that waited in bulk sends normal tasks: it gets one turn at once, and then its share."""
    order, running = FairOrder(), deque[Start]()
    for number in range(10):
        order.add_user(f"u{number}")
        order.push(f"u{number}", "normal", 2000)
    for number in range(100):
        order.add_user(f"bulk{number}")
        order.push(f"bulk{number}", "bulk", 1)
    serve(order, 500, running)
    order.push("bulk99", "normal", 100)
    users = [start.user.name for start in serve(order, 40, running) if start.lane == "normal"]
    assert "bulk99" in users[:2]
    assert users.count("bulk99") <= 6
