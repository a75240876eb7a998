"""An error at every ``redis.call`` of every script, in states that can happen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.engine import scripts
from django_fairque.engine.errors import LuaScriptError
from django_fairque.engine.models import Task
from django_fairque.engine.queue import FairQueue

from .draining import drain
from .effort import SEED, logger, times
from .sites import FailingClient, all_places
from .states import LIVE, tasks
from .walk import NOW, Operation, Walk

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.options import QueueConfig

    from .states import States

START, AFTER, FAILED = 1, 2, 3
"""Where the states are kept: before the operation, after it, and after it was ended in the middle."""
Projected = tuple[bytes | None, ...]
STATES = 40
BETWEEN_SHARDS = {"carried", "spread", "told", "watch"}
"""Scripts of queues with several shards, which these walks don't have: who carries is killed at each command elsewhere."""
MOST_UNREACHED = 60
"""Of some 160 places at which a call is written: those that a slice of a build does not come to."""
EACH = 6
"""Operations that are broken in each state."""


class Breaking:
    """Breaks operations at each of their calls, and looks at what is left."""

    def __init__(self, redis: Redis, states: States, config: QueueConfig) -> None:
        self.redis, self.states = redis, states
        self.client = FailingClient(redis)
        self.queue = FairQueue(self.client, config=config)
        self.broken: Counter[tuple[str, str]] = Counter()
        self.distinct = 0

    def everywhere(self, walk: Walk, operation: Operation) -> None:
        self.states.bring_back(START)
        before = tasks(self.redis)
        self.client.begin()
        walk.perform(operation, self.queue)
        calls, reached = len(self.client.seen), list(self.client.seen)
        is_one_call = self.client.calls == 1
        self.states.keep(AFTER)
        self.settle_down(walk.now)
        after = tasks(self.redis)
        seen: set[bytes] = set()
        for fail_at in range(1, calls + 1):
            self.states.bring_back(START)
            self.client.begin(fail_at)
            with pytest.raises(LuaScriptError, match="injected"):
                operation.act(self.queue)
            self.broken[reached[fail_at - 1]] += 1
            digest = self.states.digest()
            if digest in seen:
                continue  # ended at another read: what is left is the same
            seen.add(digest)
            self.states.keep(FAILED)
            try:
                self.look(operation, walk.now, before, after, is_one_call=is_one_call)
            except AssertionError as error:
                raise AssertionError(f"ended at {reached[fail_at - 1]}: {error}") from error
        self.states.bring_back(AFTER)

    def look(
        self, operation: Operation, now: float, before: dict[str, Any], after: dict[str, Any], *, is_one_call: bool
    ) -> None:
        self.distinct += 1
        self.mend(now)
        self.nothing_is_lost(before, after)
        drain(self.queue, now)
        assert self.queue.check_invariants() == []
        self.states.bring_back(FAILED)
        self.client.repeat()
        self.mend(now)
        self.nothing_is_lost(before, after)
        if is_one_call:
            self.as_if_nothing_had_failed(after)

    def settle_down(self, now: float) -> None:
        while self.queue.sweep(now=now).more:
            pass

    def mend(self, now: float) -> None:
        """What ``fairque_check --repair`` does, and the maintenance that goes on all the time."""
        repairs = self.queue.repair(now=now)
        self.settle_down(now)
        assert [repair for repair in repairs if not repair.mended] == []
        assert self.queue.check_invariants() == []

    def as_if_nothing_had_failed(self, after: dict[str, Any]) -> None:
        now = {task_id: projected(record) for task_id, record in tasks(self.redis).items()}
        expected = {task_id: projected(record) for task_id, record in after.items()}
        different = {
            task_id: (expected.get(task_id), now.get(task_id))
            for task_id in now.keys() | expected.keys()
            if expected.get(task_id) != now.get(task_id)
            and not is_only_another_turn(expected.get(task_id), now.get(task_id))
        }
        assert not different, different

    def nothing_is_lost(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        now = tasks(self.redis)
        for task_id, record in before.items():
            if record[b"state"].decode() in LIVE or task_id in after:
                assert task_id in now, f"{task_id} is lost"
                payloads = [each[task_id][b"payload"] for each in (before, after) if task_id in each]
                assert now[task_id][b"payload"] in payloads, f"the payload of {task_id} is lost"


def projected(record: dict[bytes, bytes]) -> Projected:
    """What a user sees of a task."""
    return tuple(record.get(field) for field in (b"state", b"user", b"priority", b"payload"))


def is_only_another_turn(expected: Projected | None, now: Projected | None) -> bool:
    """A pop that ended in the middle hands out fewer tasks than it would have, or others; the next one the rest."""
    if expected is None or now is None:
        return False
    return {expected[0], now[0]} == {b"started", b"queued"} and (expected[1], expected[3]) == (now[1], now[3])


def rarest(done: Counter[str], walk: Walk) -> list[str]:
    """The four kinds of operations that were broken least often."""
    return sorted(walk.kinds, key=lambda kind: done[kind])[:4]


def test_a_graph_pushed_again_after_an_error_is_whole(redis: Redis, config: QueueConfig) -> None:
    client = FailingClient(redis)
    queue = FairQueue(client, config=config)
    first = Task.create("a", 3, "first", task_id="first")
    second = Task.create("a", 3, "second", task_id="second", depends_on=["first"])
    client.begin()
    queue.push_graph([first, second], now=NOW)
    for fail_at in range(1, len(client.seen) + 1):
        redis.flushdb()
        client.begin(fail_at)
        with pytest.raises(LuaScriptError, match="injected"):
            queue.push_graph([first, second], now=NOW)
        client.repeat()
        assert all(repair.mended for repair in queue.repair(now=NOW))
        assert [(task.state.value, task.payload) for task in map(queue.get_task, ["first", "second"])] == [
            ("queued", "first"),
            ("deferred", "second"),
        ]


@pytest.mark.slow
def test_a_script_that_ends_anywhere_loses_nothing(redis: Redis, states: States, config: QueueConfig) -> None:
    breaking = Breaking(redis, states, config)
    plain = FairQueue(redis, config=config)
    done: Counter[str] = Counter()
    for number in range(times(STATES)):
        redis.flushdb()
        walk = Walk(redis, SEED * 1_000_003 + number)
        walk.go(walk.random.randint(0, 40), plain)
        for _ in range(EACH):
            drawn = (walk.draw(*rarest(done, walk)) for _ in range(8))
            if operation := next(filter(None, drawn), None):
                states.keep(START)
                try:
                    breaking.everywhere(walk, operation)
                except AssertionError as error:
                    raise AssertionError(f"seed {SEED}, state {number}: {operation.name}: {error}") from error
                done[operation.name] += 1
    untouched = set(scripts.names()) - BETWEEN_SHARDS - {name for name, _ in breaking.broken}
    assert len(untouched) <= 2, untouched
    never = all_places() - {place for _, place in breaking.broken}
    assert len(never) <= MOST_UNREACHED, sorted(never)
    figures: dict[str, object] = {}
    figures["operations"] = done.total()
    figures["injections"] = breaking.broken.total()
    figures["states"] = breaking.distinct
    figures["unreached"] = sorted(never)
    logger.info("%s", figures)
