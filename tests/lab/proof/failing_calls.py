"""Ending an operation at each of its calls, and looking at what is left."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import LuaScriptError
from django_fairque.engine.queue.queue import FairQueue
from tests.lab.proof.call_sites import FailingClient
from tests.lab.proof.final_state import drain, settle_down
from tests.lab.proof.server_states import LIVE, tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis import Redis

    from django_fairque.engine.model.options import QueueConfig
    from tests.lab.proof.server_states import States

    Act = Callable[[FairQueue], Any]
    Projected = tuple[bytes | None, ...]
    Records = dict[str, dict[bytes, bytes]]

START, AFTER, FAILED = 1, 2, 3
"""Where the states are kept: before the operation, after it, and after it was ended in the middle."""


class Breaking:
    """Breaks operations at each of their calls, and looks at what is left."""

    def __init__(self, redis: Redis, states: States, config: QueueConfig) -> None:
        self.redis, self.states = redis, states
        self.client = FailingClient(redis)
        self.queue = FairQueue(self.client, config=config)
        self.broken: Counter[tuple[str, str]] = Counter()
        self.distinct = 0
        self.broken_script = ""
        self.queue.get_stats()  # the first call reads the number of shards, which another scenario tests

    def everywhere(
        self,
        perform: Act,
        act: Act,
        now: float,
        *,
        completes: bool = False,
        is_exact: bool = True,
        order: Sequence[tuple[str, str]] = (),
    ) -> None:
        """End ``act`` at each of its calls. ``perform`` is the same, to its end; a refusal is an end too.

        ``completes``: other calls bring the unfinished work to the same end without a repetition of this call.
        ``is_exact``: a repetition of this call does so too, if it is one script call. ``order``: pairs of
        tasks of which the second must not start before the first has ended.
        """
        self.states.bring_back(START)
        before = tasks(self.redis)
        self.client.begin()
        perform(self.queue)
        calls, reached = len(self.client.seen), list(self.client.seen)
        is_repeatable = is_exact and self.client.calls == 1
        self.states.keep(AFTER)
        self.settle_down(now)
        after = tasks(self.redis)
        seen: set[bytes] = set()
        for fail_at in range(1, calls + 1):
            self.states.bring_back(START)
            self.client.begin(fail_at)
            is_answered = self.is_answered(act)
            self.broken[reached[fail_at - 1]] += 1
            self.broken_script = reached[fail_at - 1][0]
            digest = self.states.digest()
            if digest in seen:
                continue  # ended at another read: what is left is the same
            seen.add(digest)
            self.states.keep(FAILED)
            try:
                self.look(now, before, after, order, is_repeatable=is_repeatable, completes=completes or is_answered)
            except AssertionError as error:
                raise AssertionError(f"ended at {reached[fail_at - 1]}: {error}") from error
        self.states.bring_back(AFTER)

    def is_answered(self, act: Act) -> bool:
        """Whether it succeeded all the same: the error was behind what was asked for, which then is done, or will be."""
        try:
            act(self.queue)
        except LuaScriptError as error:
            if "injected" in str(error):
                return False
            raise
        assert self.client.fail_at == 0, "no error was injected"
        return True

    def look(
        self,
        now: float,
        before: Records,
        after: Records,
        order: Sequence[tuple[str, str]],
        *,
        is_repeatable: bool,
        completes: bool,
    ) -> None:
        self.distinct += 1
        self.mend(now)
        self.nothing_is_lost(before, after)
        if completes:
            self.as_if_nothing_had_failed(after)
        self.everything_runs_once(now, order)
        self.states.bring_back(FAILED)
        self.client.repeat()
        self.mend(now)
        self.nothing_is_lost(before, after)
        if is_repeatable or completes:
            self.as_if_nothing_had_failed(after)
        self.everything_runs_once(now, order)

    def everything_runs_once(self, now: float, order: Sequence[tuple[str, str]]) -> None:
        """Check that each task starts once, and not before the tasks that it waits for."""
        started = drain(self.queue, now)
        assert self.queue.check_invariants() == []
        assert len(set(started)) == len(started), f"started twice: {started}"
        for first, second in order:
            if first in started and second in started:
                assert started.index(first) < started.index(second), f"{second} did not wait for {first}"

    def settle_down(self, now: float) -> None:
        settle_down(self.queue, now)

    def mend(self, now: float) -> None:
        """What ``fairque_check --repair`` does, and the maintenance that goes on all the time."""
        repairs = self.queue.repair(now=now)
        self.settle_down(now)
        assert [repair for repair in repairs if not repair.is_fixed] == []
        assert self.queue.check_invariants() == []

    def as_if_nothing_had_failed(self, after: Records) -> None:
        records = tasks(self.redis)
        now = {task_id: projected(record) for task_id, record in records.items()}
        expected = {task_id: projected(record) for task_id, record in after.items()}
        different = {
            task_id: (expected.get(task_id), now.get(task_id))
            for task_id in now.keys() | expected.keys()
            if expected.get(task_id) != now.get(task_id)
            and not is_only_another_turn(expected.get(task_id), now.get(task_id))
            and not (
                self.broken_script == "release_worker"
                and is_one_more_crash(expected.get(task_id), records.get(task_id, {}))
            )
        }
        assert not different, different

    def nothing_is_lost(self, before: Records, after: Records) -> None:
        now = tasks(self.redis)
        for task_id, record in before.items():
            if record[b"state"].decode() in LIVE or task_id in after:
                assert task_id in now, f"{task_id} is lost"
                payloads = [records[task_id][b"payload"] for records in (before, after) if task_id in records]
                assert now[task_id][b"payload"] in payloads, f"the payload of {task_id} is lost"


def projected(record: dict[bytes, bytes]) -> Projected:
    """Return the fields of a task that a user sees."""
    return tuple(record.get(field) for field in (b"state", b"user", b"priority", b"payload"))


def is_only_another_turn(expected: Projected | None, now: Projected | None) -> bool:
    """A pop that ended in the middle hands out fewer tasks than it would have, or others; the next one the rest."""
    if expected is None or now is None:
        return False
    return {expected[0], now[0]} == {b"started", b"queued"} and (expected[1], expected[3]) == (now[1], now[3])


def is_one_more_crash(expected: Projected | None, record: dict[bytes, bytes]) -> bool:
    """Giving a lease back ended in the middle: the task comes back when the lease ends, which may be one crash too many."""
    return expected is not None and expected[0] == b"queued" and record.get(b"failure") == b"poisoned"
