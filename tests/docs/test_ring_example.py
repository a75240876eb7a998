"""The numbers of docs/contributing/ring.md and of its picture are what a real server does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

import pytest

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from tests.docs.blocks import DOCS
from tests.engine.conftest import NOW, task
from tests.engine.test_explanation_pages import table
from tests.user_records import number_of

if TYPE_CHECKING:
    from redis import Redis

RUN_SECONDS = {"acme": 1.0, "beta": 1.0, "carol": 3.0}
CAROL_COMES = 5
"""Before this turn carol pushes the first tasks of this user."""
P = "fq:{default:0}:"


def push(queue: FairQueue, user: str, number: int, now: float) -> None:
    queue.push_batch([task(user) for _ in range(number)], now=now)


def places(redis: Redis) -> dict[str, float]:
    """The place of each user in the ring, the next user first, in microseconds."""
    ring = cast("list[tuple[bytes, float]]", redis.zrange(f"{P}ring", 0, -1, withscores=True))
    return {user.decode(): place for user, place in ring}


def text(microseconds: float) -> str:
    """A place as the page shows it: in seconds. The parts of a nanosecond that order equal places are not shown."""
    return f"{microseconds / 1e6:.1f}"


def ring_text(redis: Redis) -> str:
    return ", ".join(f"{user} {place_text(place)}" for user, place in places(redis).items())


def place_text(place: float) -> str:
    return "new" if place < 0 else text(place)


def run_turns(redis: Redis, number: int) -> list[list[str]]:
    """Run the example of the page for this many turns; the rows of its table."""
    queue, now, rows = FairQueue(redis, "default", QueueConfig(fair_by="time")), NOW, []
    queue.user("beta").set_weight(2, now=now)
    push(queue, "acme", 5, now)
    push(queue, "beta", 9, now)
    for turn in range(1, number + 1):
        if turn == CAROL_COMES:
            push(queue, "carol", 2, now)
        before = ring_text(redis)
        reply = queue.settle([], 1, worker="w", lease=100, now=now)
        (lease,) = reply.leases
        user = lease.user_id
        expected, running = redis.hget(f"{P}task:{lease.task_id}", "cost"), places(redis)[user]
        now += RUN_SECONDS[user]
        queue.finish(lease, took=RUN_SECONDS[user], now=now)
        row = [str(turn), before, user, text(reply.virtual_time), text(float(expected or "nan")), text(running)]
        rows.append([*row, f"{RUN_SECONDS[user]}", text(places(redis)[user])])
    assert queue.check_invariants() == []
    return rows


def test_the_engine_takes_the_turns_of_the_example(redis: Redis) -> None:
    rows = table("ring.md", "turns")
    assert len(rows) == 8
    assert run_turns(redis, len(rows)) == rows


def test_users_who_become_busy_get_the_documented_positions(redis: Redis) -> None:
    rows = table("ring.md", "busy")
    queue = FairQueue(redis, "default", QueueConfig(fair_by="tasks"))
    queue.user("carol").set_weight(0.25, now=NOW)
    for user, number in (("acme", 2), ("beta", 9), ("carol", 1)):
        push(queue, user, number, NOW)
    served = []
    for _ in range(7):
        reply = queue.settle([], 1, worker="w", lease=100, now=NOW)
        (lease,) = reply.leases
        served.append(lease.user_id)
        queue.finish(lease, took=1, now=NOW)
    assert (served.count("acme"), served.count("carol")) == (2, 1)
    assert text(reply.virtual_time) == "3.0"
    assert list(places(redis)) == ["beta"]

    found = []
    for user in ("acme", "carol", "dave"):
        before = number_of(redis, f"{P}user:{user}", "tag")
        push(queue, user, 1, NOW)
        found.append([user, text(before) if before else "none", place_text(places(redis)[user])])
    assert found == [row[:3] for row in rows]
    assert queue.check_invariants() == []


def test_the_picture_shows_a_turn_of_the_example(redis: Redis) -> None:
    """The picture: the ring before the first turn of carol, and where this turn moves the place of carol."""
    _, ring, user, virtual_time, _, running, _, after = run_turns(redis, CAROL_COMES)[-1]
    drawn = re.findall(r">([a-z ]+ \d+\.\d)<", (DOCS / "images" / "ring.svg").read_text())
    assert user == "carol"
    assert sorted(drawn) == sorted(
        [
            *(entry for entry in ring.split(", ") if entry != "carol new"),
            f"virtual time {virtual_time}",
            f"tag {virtual_time}",
            f"expected {running}",
            f"actual {after}",
        ]
    )
    for name, place in (label.rsplit(" ", 1) for label in drawn):
        assert position_of(name) == pytest.approx(100 + 160 * float(place)), name


def position_of(name: str) -> float:
    """Where the picture draws the mark with this name, in its own units."""
    found = re.search(rf'data-mark="{name}"[^>]* cx="([\d.]+)"', (DOCS / "images" / "ring.svg").read_text())
    assert found, f"the picture has no mark {name}"
    return float(found[1])
