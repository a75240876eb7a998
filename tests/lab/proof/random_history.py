"""Histories drawn at random through the queue's public calls: how a proof comes to states that can happen."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.model.errors import FairQueueError, StaleLeaseError, TaskNotFoundError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import EventCount
from django_fairque.engine.model.task import Task
from django_fairque.engine.schedules.schedule_ops import OVERLAP_POLICIES
from tests.lab.proof.blocked_fetch import fetched_ahead
from tests.lab.proof.server_states import LIVE
from tests.stored_tasks import stored_record
from tests.user_records import change_record, number_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.scripting.operations import Operation, Request

NOW = 2_000_000_000.0
"""After any real clock, so that it is the engine's time."""
LEASE = 30.0
USERS = ("a", "b", "*", "c:normal")
ORGANIZATIONS = ("g", "a")
WORKERS = ("w1", "w2")
PREFIX = "fq:{default:0}:"
ENDED = ("finished", "failed", "canceled")
POLICIES = ("wait", "cancel", "run")
EXPECTED = (StaleLeaseError, TaskNotFoundError, FairQueueError)
"""Errors that an operation of a history may raise: refusals."""


@dataclass(frozen=True)
class RandomOperation:
    """One thing to do, with all that it needs; doing it again does the same."""

    name: str
    act: Callable[[FairQueue], Any]


class Walk:
    """Draws operations that fit the present state. The caller performs them and reports their results."""

    missed = "all"
    """The option ``missed`` of the schedules."""

    def __init__(self, redis: Any, seed: int) -> None:
        self.redis = redis
        self.random = random.Random(seed)
        self.now = NOW
        self.leases: list[Lease] = []
        self.made = 0
        self.kinds: dict[str, Callable[[], Callable[[FairQueue], Any] | None]] = {
            name.removeprefix("_do_"): getattr(self, name) for name in dir(self) if name.startswith("_do_")
        }

    def draw(self, *kinds: str) -> RandomOperation | None:
        """An operation of one of these kinds (or any); None if it would have nothing to act on."""
        name = self.random.choice(kinds or sorted(self.kinds))
        act = self.kinds[name]()
        return RandomOperation(name, act) if act else None

    def perform(self, operation: RandomOperation, queue: FairQueue) -> Any:
        """Do it and remember its leases; a refusal is an answer too."""
        try:
            result = operation.act(queue)
        except EXPECTED as error:
            return type(error).__name__
        self.remember(result)
        return result

    @staticmethod
    def perform_again(operation: RandomOperation, queue: FairQueue) -> Any:
        """Do it on another queue, whose leases are the same ones."""
        try:
            return operation.act(queue)
        except EXPECTED as error:
            return type(error).__name__

    def remember(self, result: Any) -> None:
        leases = result if isinstance(result, list) else getattr(result, "leases", [])
        self.leases += [lease for lease in leases if hasattr(lease, "token")]
        self.leases = self.leases[-12:]

    def go(self, steps: int, queue: FairQueue) -> None:
        for _ in range(steps):
            if operation := self.draw():
                self.perform(operation, queue)

    def ids(self, *states: str) -> list[str]:
        found: list[bytes] = []
        for state in states:
            found += self.redis.zrange(f"{PREFIX}state:{state}", 0, -1)
        return [task_id.decode() for task_id in found]

    def some(self, *states: str, most: int = 3) -> list[str]:
        ids = self.ids(*states)
        return self.random.sample(ids, min(len(ids), self.random.randint(1, most)))

    def lease(self) -> Lease | None:
        return self.random.choice(self.leases) if self.leases else None

    def task(self, **options: Any) -> Task:
        draw = self.random
        self.made += 1
        options.setdefault("task_id", f"t{self.made}")
        if draw.random() < 0.2:
            options["execute_after"] = self.now + draw.choice([1, 20, 60])
        if draw.random() < 0.15:
            options["expires_at"] = self.now + draw.choice([1, 40])
        if draw.random() < 0.15:
            options["sla"] = draw.choice([1, 10])
        return Task.create(
            draw.choice(USERS), draw.randint(1, 6), {"n": self.made}, max_retries=draw.randint(0, 2), **options
        )

    def _do_push(self) -> Callable[[FairQueue], Any]:
        draw, options = self.random, {}
        if draw.random() < 0.3:
            options = {"unique_key": draw.choice("xy"), draw.choice(["unique_for", "debounce"]): 10}
        ended = self.ids(*ENDED)
        if ended and draw.random() < 0.3:
            options["task_id"] = draw.choice(ended)
        task, now = self.task(**options), self.now
        return lambda queue: queue.push(task, now=now)

    def _do_push_batch(self) -> Callable[[FairQueue], Any]:
        tasks, now = [self.task() for _ in range(self.random.randint(1, 4))], self.now
        return lambda queue: queue.push_batch(tasks, now=now)

    def _do_push_graph(self) -> Callable[[FairQueue], Any]:
        draw, now = self.random, self.now
        names = [f"g{self.made}.{i}" for i in range(draw.randint(1, 3))]
        waited = [name for name in self.ids("failed") if self.redis.exists(f"{PREFIX}deps:waiting:{name}")]
        names += draw.sample(waited or self.ids(*ENDED), min(1, len(self.ids(*ENDED))))
        known = self.ids(*LIVE, *ENDED)
        tasks = [
            self.task(
                task_id=name,
                depends_on=draw.sample([*known, *names[:i]], min(len(known) + i, draw.randint(0, 2))),
                on_dependency_failure=draw.choice(POLICIES),
            )
            for i, name in enumerate(names)
        ]
        run = draw.choice([None, "r1", "r2"])
        return lambda queue: queue.push_graph(tasks, run, now=now)

    def _do_deliver(self) -> Callable[[FairQueue], Any]:
        tasks, now, draw = [self.task() for _ in range(self.random.randint(0, 2))], self.now, self.random
        counts = {"e": EventCount(2, 1, 1, "bad")} if draw.random() < 0.5 else {}
        from_outbox = draw.random() < 0.7
        return lambda queue: queue.deliver(tasks, counts, from_outbox=from_outbox, now=now)

    def _do_forget_delivered(self) -> Callable[[FairQueue], Any]:
        names, now = [f"t{n}" for n in range(self.made)], self.now
        return lambda queue: queue.forget_delivered(names[-3:], now=now)

    def _do_pop(self) -> Callable[[FairQueue], Any]:
        draw, now = self.random, self.now
        n, worker = draw.randint(1, 4), draw.choice(WORKERS)
        return lambda queue: queue.pop_batch(n, worker, lease=LEASE, now=now)

    def _do_pop_for_some(self) -> Callable[[FairQueue], Any]:
        draw, now = self.random, self.now
        n, worker, steal = draw.randint(1, 4), draw.choice(WORKERS), draw.choice(["*", ["c:normal"], []])
        return lambda queue: queue.pop_batch(n, worker, ["a", "b"], steal, lease=LEASE, now=now)

    def _do_settle(self) -> Callable[[FairQueue], Any] | None:
        draw, now = self.random, self.now
        if not self.leases:
            return None
        outcomes = [self._outcome(lease) for lease in draw.sample(self.leases, min(len(self.leases), 2))]
        fetch, worker = draw.choice([0, 0, 2]), draw.choice(WORKERS)
        return lambda queue: queue.settle(outcomes, fetch, worker=worker, lease=LEASE, now=now)

    def _do_fetch_ahead(self) -> Callable[[FairQueue], Any]:
        worker, now, again = self.random.choice(WORKERS), self.now, self.random.random() < 0.5
        return lambda queue: fetched_ahead(queue, worker, now, LEASE, again=again)

    def _outcome(self, lease: Lease) -> Outcome:
        return self.random.choice(
            [
                Outcome.finish(lease, 1, took=0.01),
                Outcome.finish(lease, took=0.01),
                Outcome.fail(lease, "x", delay=5, took=0.01),
                Outcome.fail(lease, "x", delay=None, took=0.01),
                Outcome.retry(lease, "x", delay=5),
                Outcome.discard(lease, "x"),
                Outcome.release(lease),
                Outcome.crash(lease, "x"),
                Outcome.poison(lease, "x"),
            ]
        )

    def _do_renew(self) -> Callable[[FairQueue], Any]:
        leases, now = list(self.leases), self.now
        return lambda queue: queue.renew(leases, lease=LEASE, now=now)

    def _do_heartbeat(self) -> Callable[[FairQueue], Any]:
        worker, now = self.random.choice(WORKERS), self.now
        return lambda queue: queue.heartbeat(worker, {"host": "h"}, lease=LEASE, now=now)

    def _do_tell(self) -> Callable[[FairQueue], Any]:
        worker, now = self.random.choice(WORKERS), self.now
        return lambda queue: queue.set_worker_command(worker, "drain", now=now)

    def _do_release_worker(self) -> Callable[[FairQueue], Any]:
        draw, now = self.random, self.now
        worker, forget = draw.choice(WORKERS), draw.random() < 0.5
        crashed = [lease.token for lease in self.leases if draw.random() < 0.5]
        return lambda queue: queue.release_worker(worker, crashed, forget=forget, now=now)

    def _do_reconcile_worker(self) -> Callable[[FairQueue], Any]:
        draw, now = self.random, self.now
        worker = draw.choice(WORKERS)
        held = [lease.token for lease in self.leases if draw.random() < 0.5]
        return lambda queue: queue.reconcile_worker(worker, held, now=now)

    def _do_sweep(self) -> Callable[[FairQueue], Any]:
        self.now += self.random.choice([0.5, 3, 12, 31, 100])
        now = self.now
        return lambda queue: queue.sweep(now=now)

    def _do_sweep_much_later(self) -> Callable[[FairQueue], Any] | None:
        if self.random.random() < 0.6:
            return None
        self.now += 40_000
        now = self.now
        return lambda queue: queue.sweep(now=now)

    def _do_pause(self) -> Callable[[FairQueue], Any]:
        now = self.now if self.random.random() < 0.7 else None
        is_paused = self.random.random() < 0.3
        if not is_paused:
            return lambda queue: queue.resume(now=now)
        return lambda queue: queue.pause(note="n", until=now and now + 15, now=now)

    def _do_cancel(self) -> Callable[[FairQueue], Any] | None:
        ids, now = self.some(*LIVE), self.now
        return (lambda queue: queue.cancel_many(ids, now=now)) if ids else None

    def _do_run_now(self) -> Callable[[FairQueue], Any] | None:
        ids, now = self.some("scheduled"), self.now
        return (lambda queue: queue.run_now(*ids, now=now)) if ids else None

    def _do_run_regardless(self) -> Callable[[FairQueue], Any] | None:
        ids, now = self.some("deferred", most=1), self.now
        return (lambda queue: queue.ignore_dependencies(ids[0], now=now)) if ids else None

    def _do_progress(self) -> Callable[[FairQueue], Any] | None:
        lease, now = self.lease(), self.now
        return (lambda queue: queue.set_progress(lease, 1, 2, now=now)) if lease else None

    def _do_requeue(self) -> Callable[[FairQueue], Any] | None:
        entries, now = self._letters(), self.now
        payload = self.random.choice([None, {"other": 1}])
        return (lambda queue: queue.dlq.requeue_many(entries, payload, now=now)) if entries else None

    def _do_discard(self) -> Callable[[FairQueue], Any] | None:
        entries, now = self._letters(), self.now
        return (lambda queue: queue.dlq.discard_many(entries, now=now)) if entries else None

    def _letters(self) -> list[str]:
        ids = self.some("failed", most=2)
        return [f"{task_id}~{int(self.redis.hget(f'{PREFIX}task:{task_id}', 'died') or 0)}" for task_id in ids]

    def _do_cleanup(self) -> Callable[[FairQueue], Any] | None:
        if not self.ids("failed"):
            return None
        self.now += 30
        now = self.now
        return lambda queue: queue.dlq.cleanup(20, now=now)

    def _do_xcom(self) -> Callable[[FairQueue], Any]:
        now, key = self.now, self.random.choice("kl")
        return lambda queue: queue.xcom("n").push(key, 1, now=now)

    def _do_alerts(self) -> Callable[[FairQueue], Any]:
        now = self.now
        return lambda queue: queue.take_alerts(now=now)

    def _do_user(self) -> Callable[[FairQueue], Any]:
        draw, now = self.random, self.now
        name = draw.choice(USERS)
        kind, value = draw.choice(
            [
                *(("set_weight", 2), ("set_weight", 0.5), ("set_max_running", 1), ("set_max_running", None)),
                *(("set_rate", "1/10s"), ("set_rate", None), ("set_sla", 5), ("set_max_backlog", 9)),
            ]
        )
        if draw.random() < 0.3:
            is_paused = draw.random() < 0.4
            until = draw.choice([None, now + 15])
            if is_paused:
                return lambda queue: queue.user(name).pause(note="n", until=until, now=now)
            return lambda queue: queue.user(name).resume(now=now)
        return lambda queue: getattr(queue.user(name), kind)(value, now=now)

    def _do_join(self) -> Callable[[FairQueue], Any]:
        now, name, organization = (
            self.now,
            self.random.choice(USERS),
            self.random.choice([*ORGANIZATIONS, ORGANIZATIONS[0], None]),
        )
        return lambda queue: queue.user(name).set_organization(organization, now=now)

    def _do_organization(self) -> Callable[[FairQueue], Any]:
        now, name = self.now, self.random.choice(ORGANIZATIONS)
        settings: list[tuple[str, list[Any]]] = [("set_weight", [2]), ("set_weight", [1])]
        settings += [
            ("set_max_running", [1]),
            ("set_max_running", [None]),
            ("pause", []),
            ("resume", []),
            ("resume", []),
        ]
        kind, values = self.random.choice(settings)
        until = {"until": now + 15} if kind == "pause" and self.random.random() < 0.5 else {}
        return lambda queue: getattr(queue.organization(name), kind)(*values, **until, now=now)

    def _do_schedule(self) -> Callable[[FairQueue], Any]:
        draw, now = self.random, self.now
        name, every, task = draw.choice(["s1", "s2"]), draw.choice([30, 60]), self.task(task_id=None)
        if draw.random() < 0.3:
            return lambda queue: queue.schedules.remove(name, now=now)
        options: dict[str, Any] = {
            "enabled": draw.random() < 0.8,
            "missed": self.missed,
            "overlap": draw.choice(OVERLAP_POLICIES),
        }
        options["jitter"] = draw.choice([0, 20])
        return lambda queue: queue.schedules.add(name, task=task, every=every, now=now, **options)

    def _do_repair(self) -> Callable[[FairQueue], Any]:
        """Damage an index or a counter, and repair it from the tasks' records."""
        draw, redis, now = self.random, self.redis, self.now
        damages: list[tuple[Any, ...]] = []
        for key in sorted(redis.keys("fq:[{]default:0[}]:*")):
            kind = key.decode().removeprefix(PREFIX)
            whole = ("state:", "queue:", "leases:", "deps:", "run:", "ring:", "group:")
            if kind.startswith(whole) or kind in ("ring", "users", "groups", "grouped"):
                damages.append(("DEL", key))
            elif kind.startswith("user:"):
                damages += [("RECORD", key, "ready_3", number_of(redis, key, "ready:3") + 1), ("RECORD", key, "run", 7)]
            if kind.startswith(("deps:", "run:", "leases:")):
                damages += [("SREM", key, member) for member in sorted(redis.smembers(key))]
            elif kind.startswith("state:"):
                damages += [("ZREM", key, member) for member in redis.zrange(key, 0, -1)]
            elif kind.startswith("user:"):
                damages += [("ZADD", f"{PREFIX}throttled", 1, kind.removeprefix("user:")), ("DEL", key)]
        damages += [
            ("HINCRBY", f"{PREFIX}stats", "depth:3", 2),
            *(("ZADD", f"{PREFIX}ring", 1, name) for name in ("nobody", "a", b"\xffg", b"\xffnobody")),
            *(("ZADD", f"{PREFIX}{key}", 1, "a") for key in ("ring:g", "ring:nobody", "grouped")),
            *(("HINCRBY", f"{PREFIX}stats", name, 1) for name in ("groups", "behind")),
            *(("HINCRBY", f"{PREFIX}group:g", name, 1) for name in ("ready", "members", "run")),
            ("ZADD", f"{PREFIX}groups", 0, "nobody"),
            ("ZADD", f"{PREFIX}state:queued", 1, "nobody"),
            ("SADD", f"{PREFIX}leases:w1", "nobody"),
            ("SADD", f"{PREFIX}run:r1", "nobody"),
            ("SADD", f"{PREFIX}deps:blocked:nobody", "somebody"),
            ("ZADD", f"{PREFIX}users", 1, "nobody"),
            ("RPUSH", f"{PREFIX}history:nobody", "1"),
            ("SET", f"{PREFIX}payload:nobody", "1"),
        ]
        for task_id in self.ids("queued"):
            user = stored_record(redis, task_id)[b"user"].decode()
            critical = f"{PREFIX}queue:user:{user}:critical"
            damages += [("RPUSH", critical, task_id), ("DEL", f"{PREFIX}queue:user:{user}:normal")]
            damages += [("LREM", critical, 0, task_id), ("ZADD", f"{PREFIX}queue:user:z:normal", 1, task_id)]
        chosen = draw.sample(damages, 5)

        def act(queue: FairQueue) -> Any:
            for command in chosen:
                _damage(redis, *command)
            return queue.repair(now=now)

        return act

    def _do_fire(self) -> Callable[[FairQueue], Any] | None:
        due = self.redis.zrange(f"{PREFIX}schedules:due", 0, 0, withscores=True)
        if not due:
            return None
        self.now = max(self.now, due[0][1] / 1_000_000)
        now = self.now
        return lambda queue: queue.schedules.fire_due(1, now=now)

    def _do_pop_twice(self) -> Callable[[FairQueue], Any]:
        """The same call, because its reply was lost."""
        now, worker = self.now, self.random.choice(WORKERS)

        def act(queue: FairQueue) -> Any:
            steps = leasing.pop_batch_from_shard(queue._shards.home, leasing.Fetch(2, worker, lease=LEASE), now)
            request = next(steps)
            queue._transport.send(request)
            return queue._run(_answered(steps, request))

        return act


def _answered(steps: Operation[Any], request: Request) -> Operation[Any]:
    """The rest of ``steps`` whose first request was taken already."""
    reply = yield request
    try:
        while True:
            reply = yield steps.send(reply)
    except StopIteration as stop:
        return stop.value


def _damage(redis: Any, command: str, key: Any, *arguments: Any) -> None:
    if command != "RECORD":
        redis.execute_command(command, key, *arguments)
    elif redis.exists(key):
        change_record(redis, key, **{arguments[0]: arguments[1]})
