"""The SLA ledger: which tasks count, why they were late, and its costs. The tests give the time of each call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.lanes import Lane
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.users.sla_ledger import LATE_CAUSES, SlaFigures, SlaLedger
from django_fairque.monitoring.reports.sla_report import CAUSES
from django_fairque.monitoring.wait_explanations import reasons
from tests.counting import commands
from tests.engine.conftest import MakeQueue, pop, sweep_all, task

START = 2_000_073_600.0
"""The beginning of an hour."""


def run_late(queue: FairQueue, user: str = "ann", begin: float = START, **options: Any) -> None:
    """Let a task miss its SLA of 10 s, which a sweep notices in time, and end."""
    queue.push(task(user, sla=10, **options), now=begin)
    sweep_all(queue, begin + 11)
    queue.finish(pop(queue, begin + 12, users=[user]), took=0.01, now=begin + 12)


def counts(rows: list[SlaFigures]) -> dict[str, tuple[int, ...]]:
    return {row.name: (row.kept, row.missed, row.at_risk, row.late) for row in rows}


class World:
    """Random events on a queue, and what the ledger should contain."""

    def __init__(self, queue: FairQueue, random: Random) -> None:
        self.queue, self.random, self.now = queue, random, START
        self.facts: dict[str, tuple[str, Lane, str, float, float | None]] = {}
        self.counted: dict[str, str] = {}
        self.waiting: set[str] = set()
        self.running: list[Lease] = []

    def push(self) -> None:
        user, name = self.random.choice("abc"), self.random.choice(["mail", "", "x:1:y"])
        lane: Lane = self.random.choice(["urgent", "normal", "bulk"])
        sla = self.random.choice([None, 5.0, 60.0])
        expires = self.random.choice([None, None, 20.0])
        options: dict[str, Any] = {"name": name, "sla": sla, "lane": lane, "expires": expires, "max_retries": 2}
        found = self.queue.push(task(user, **options), now=self.now)
        within = sla if sla is not None else {"urgent": 60.0, "normal": 7200.0, "bulk": None}[lane]
        self.facts[found.task_id] = (user, lane, name, self.now, within)
        self.waiting.add(found.task_id)

    def count(self, task_id: str, *, started: bool) -> None:
        *_, ready, within = self.facts[task_id]
        if within is not None and task_id not in self.counted and (self.now > ready + within or started):
            self.counted[task_id] = "missed" if self.now > ready + within else "kept"

    def fetch(self) -> None:
        for lease in self.queue.pop_batch(3, "w", lease=10_000, now=self.now):
            if lease.task_id in self.waiting:
                self.waiting.discard(lease.task_id)
                self.count(lease.task_id, started=True)
            self.running.append(lease)

    def settle(self) -> None:
        kinds: list[Callable[[Lease], Outcome]] = [
            Outcome.finish,
            lambda lease: Outcome.fail(lease, "no", delay=1),
            lambda lease: Outcome.retry(lease, "no", delay=1),
            lambda lease: Outcome.crash(lease, "no"),
            lambda lease: Outcome.discard(lease, "no"),
        ]
        for lease in self.running:
            self.queue.settle([self.random.choice(kinds)(lease)], 0, worker="w", now=self.now)
        self.running = []

    def cancel(self) -> None:
        if self.waiting:
            task_id = self.random.choice(sorted(self.waiting))
            self.queue.cancel(task_id, now=self.now)
            self.end_waiting(task_id)

    def end_waiting(self, task_id: str) -> None:
        self.waiting.discard(task_id)
        self.count(task_id, started=False)

    def wait(self) -> None:
        self.now += self.random.choice([1.13, 7.37, 30.71])
        sweep_all(self.queue, self.now)
        for task_id in sorted(self.waiting):
            if self.queue.get_task(task_id).state == "failed":
                self.end_waiting(task_id)

    def expected(self, place: int) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for task_id, result in self.counted.items():
            found.setdefault(str(self.facts[task_id][place]), Counter())[result] += 1
        for task_id in self.waiting:
            *_, ready, within = self.facts[task_id]
            if within is not None and self.now >= ready + within - min(300, within / 2):
                kind = "late" if self.now >= ready + within else "at_risk"
                found.setdefault(str(self.facts[task_id][place]), Counter())[kind] += 1
        return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shards", [1, 3])
def test_the_ledger_agrees_with_counts_of_random_worlds(redis: Redis, seed: int, shards: int) -> None:
    queue = FairQueue(redis, config=QueueConfig(shards=shards, retry_jitter=0))
    world = World(queue, Random(seed))
    for _ in range(120):
        world.random.choice([world.push, world.push, world.fetch, world.settle, world.cancel, world.wait])()
    world.settle()
    ledger = queue.sla_ledger(now=world.now)
    for place, rows in enumerate((ledger.users, ledger.lanes, ledger.tasks)):
        found = {
            row.name: Counter({"kept": row.kept, "missed": row.missed, "at_risk": row.at_risk, "late": row.late})
            for row in rows
        }
        assert {name: +counter for name, counter in found.items()} == world.expected(place)
        assert all(sum(row.causes.values()) == row.missed for row in rows)
    assert (ledger.unlisted, ledger.is_estimate) == (0, False)


def block(queue: FairQueue, cause: str) -> None:
    user = queue.user("ann")
    if cause == "queue_paused":
        queue.pause(now=START)
    elif cause == "user_paused":
        user.pause(now=START)
    elif cause in ("capped", "throttled"):
        user.set_max_running(1, now=START) if cause == "capped" else user.set_rate("1/1h", now=START)
        queue.push(task("ann"), now=START)
        pop(queue, START, lease=1000)
    elif cause in ("organization_paused", "organization_capped"):
        user.set_organization("org", now=START)
        organization = queue.organization("org")
        if cause == "organization_paused":
            organization.pause(now=START)
        else:
            organization.set_max_running(1, now=START)
            queue.push(task("ann"), now=START)
            pop(queue, START, lease=1000)


@pytest.mark.parametrize(
    "cause", ["queue_paused", "user_paused", "organization_paused", "capped", "throttled", "organization_capped"]
)
def test_the_cause_is_the_reason_why_the_task_waits_when_its_deadline_passes(queue: FairQueue, cause: str) -> None:
    block(queue, cause)
    task_id = queue.push(task("ann", sla=10, name="n"), now=START).task_id
    sweep_all(queue, START + 11)
    assert reasons(queue, task_id)[0].kind == cause
    queue.cancel(task_id, now=START + 20)
    (row,) = (row for row in queue.sla_ledger(now=START + 20).tasks if row.name == "n")
    assert (row.missed, row.cause) == (1, cause)


def test_a_late_task_of_a_user_with_much_more_waiting_tasks_was_behind_its_own(queue: FairQueue) -> None:
    queue.push_batch([task("big", sla=10) for _ in range(8)] + [task("small", sla=10), task("tiny", sla=10)], now=START)
    sweep_all(queue, START + 11)
    leases = queue.pop_batch(10, "w", now=START + 12)
    queue.settle([Outcome.finish(lease) for lease in leases], 0, worker="w", now=START + 13)
    users = {row.name: row.causes for row in queue.sla_ledger(now=START + 14).users}
    assert users == {"big": {"behind_own": 8}, "small": {"behind_users": 1}, "tiny": {"behind_users": 1}}


def test_a_deadline_that_nobody_noticed_for_a_minute_passed_without_a_worker(queue: FairQueue) -> None:
    queue.push(task("ann", sla=10), now=START)
    queue.finish(pop(queue, START + 100), now=START + 101)
    assert queue.sla_ledger(now=START + 102).lanes == [SlaFigures("normal", 0, 1, causes={"no_worker": 1})]


def test_a_start_in_time_counts_also_if_a_stop_interrupts_it(queue: FairQueue) -> None:
    def interrupt(at: float, give_back: Callable[[Lease, float], object]) -> None:
        queue.push(task("ann", sla=10), now=at)
        give_back(pop(queue, at + 1), at + 4)
        queue.finish(pop(queue, at + 30), now=at + 31)

    interrupt(START, lambda lease, now: queue.settle([Outcome.release(lease, took=3)], 0, worker="w", now=now))
    interrupt(START + 100, lambda lease, now: queue.release_worker("w", started=[lease.token], now=now))
    interrupt(START + 200, lambda lease, now: queue.release(lease, now=now))  # released before the task began
    assert counts(queue.sla_ledger(now=START + 300).users) == {"ann": (2, 1, 0, 0)}


def test_bulk_tasks_without_an_sla_do_not_count(queue: FairQueue) -> None:
    queue.user("bob").set_sla(10, now=START)
    for user in ("ann", "bob"):
        queue.push(task(user, lane="bulk"), now=START)
        queue.finish(pop(queue, START + 1), now=START + 2)
    ledger = queue.sla_ledger(now=START + 3)
    assert counts(ledger.users) == {"bob": (1, 0, 0, 0)}
    assert counts(ledger.lanes) == {"bulk": (1, 0, 0, 0)}


def test_an_sla_costs_no_command_if_it_is_kept_and_one_if_it_is_missed(queue: FairQueue, redis: Redis) -> None:
    def settle(at: float, **options: Any) -> int:
        queue.push_batch([task("ann", name="n", lane="bulk", **options) for _ in range(5)], now=START + at)
        sweep_all(queue, START + at + 20)
        leases = queue.pop_batch(5, "w", now=START + at + 20)
        outcomes = [Outcome.finish(lease, took=0.01) for lease in leases]
        return commands(redis, lambda: queue.settle(outcomes, 0, worker="w", now=START + at + 20))

    for at, sla in enumerate((None, 90, 10)):
        settle(100 * at, sla=sla)  # first counts of an hour cost more
    without, kept, missed = settle(400), settle(500, sla=90), settle(600, sla=10)
    assert kept <= without, "the heads of tasks without an SLA are read"
    assert missed == kept + 1


def test_late_tasks_of_many_users_cost_one_command_each_and_a_few_for_the_call(queue: FairQueue, redis: Redis) -> None:
    def settle(at: float, sla: float) -> int:
        queue.push_batch([task(f"u{n}", name="n", sla=sla) for n in range(50)], now=START + at)
        sweep_all(queue, START + at + 20)
        outcomes = [Outcome.finish(lease, took=0.01) for lease in queue.pop_batch(50, "w", now=START + at + 20)]
        return commands(redis, lambda: queue.settle(outcomes, 0, worker="w", now=START + at + 20))

    settle(0, 90)
    assert settle(100, 10) <= settle(200, 90) + 50 + 5


def test_thousands_of_users_and_names_take_a_bounded_space_that_is_freed(make_queue: MakeQueue, redis: Redis) -> None:
    queue, users = make_queue(), 2_300
    queue.push_batch([task(f"u{n}", sla=1, name=f"n{n}") for n in range(users)], now=START)
    for _ in range(3):
        leases = queue.pop_batch(1000, "w", now=START + 5)
        queue.settle([Outcome.finish(lease) for lease in leases], 0, worker="w", now=START + 5)
    ledger = queue.sla_ledger(now=START + 6)
    key = f"fq:{{default:0}}:stats:late:{int(START) // 3600}"
    assert int(redis.hlen(key)) <= 2_000 + 101
    assert 0 < int(redis.ttl(key)) <= 26 * 3600
    assert (len(ledger.users), len(ledger.tasks), ledger.unlisted) == (50, 101, users - 50)
    assert sum(row.missed for row in ledger.tasks) == ledger.lanes[0].missed == users


def test_the_numbers_of_very_many_waiting_tasks_are_estimated(queue: FairQueue) -> None:
    queue.push_batch([task(f"u{n % 3}", sla=10) for n in range(900)], now=START)
    queue.push_batch([task("soon", sla=60) for _ in range(90)], now=START)
    sweep_all(queue, START + 40)
    ledger = queue.sla_ledger(now=START + 40)
    assert ledger.is_estimate
    assert counts(ledger.lanes) == {"normal": (0, 0, 90, 900)}
    late = {row.name: row.late for row in ledger.users}
    assert all(180 <= late[f"u{n}"] <= 420 for n in range(3)), late


def test_an_old_hour_is_left_out_of_a_shorter_time(queue: FairQueue) -> None:
    run_late(queue)
    run_late(queue, begin=START + 3600, name="later")

    def missed(ledger: SlaLedger) -> dict[str, int]:
        return {row.name: row.missed for row in [*ledger.users, *ledger.tasks]}

    assert missed(queue.sla_ledger(1, now=START + 3700)) == {"ann": 1, "later": 1}
    assert missed(queue.sla_ledger(24, now=START + 3700)) == {"ann": 2, "": 1, "later": 1}


def test_each_cause_has_words() -> None:
    assert set(CAUSES) == set(LATE_CAUSES)
