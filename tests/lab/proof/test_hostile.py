"""Hostile bytes in every field of every key: an error or quarantine, never a worker that exits, hangs or imports."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis, ResponseError

from django_fairque import task
from django_fairque.conf import get_queue
from django_fairque.engine.model.errors import LuaScriptError
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import LEASE_FIELDS, Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks import registry
from django_fairque.tasks.execution import Run, Services, prepare
from django_fairque.worker import Worker
from tests.lab.proof.budget import SEED, times
from tests.lab.proof.random_history import PREFIX, Walk
from tests.lab.proof.server_states import States
from tests.servers import Server
from tests.stored_tasks import replace_payload

if TYPE_CHECKING:
    from pytest_django import Settings  # the oldest supported version does not export it

DECODED, SENT = 160_000, 40_000
"""Leases that are decoded, and damaged fields that scripts meet."""
HANG = 1.0
VALUES: tuple[bytes, ...] = (
    *(b"", b"-1", b"0", b"nan", b"-nan", b"inf", b"1e400", b"-1e400", b"9007199254740993", b"9" * 400, b"0x10", b" 7 "),
    *(
        b"\xff\xfe",
        b"\x00",
        b"os.system",
        b"a" * 100_000,
        b"{",
        b"[" * 2_000,
        b'{"args":[],"kwargs":{}}',
        b"3:abc",
        b"-5:x",
        b"-3:",
    ),
    *("\N{ARABIC-INDIC DIGIT FIVE}".encode(), b"1\n2", b"queued", b"started", b"failed", b"*", b"../..", b"%s%n"),
)


@pytest.fixture
def queue(own_server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> FairQueue:
    """The default queue of a Django project that has one task."""
    monkeypatch.setattr(registry, "_tasks", {})
    # Not signed: a wrong signature would end all of it before anything is decoded.
    settings.FAIRQUE = {"REDIS": {"URL": own_server.url}, "SIGNING": "off"}
    return get_queue()


@pytest.mark.slow
def test_a_lease_with_any_bytes_runs_or_is_poisoned(queue: FairQueue) -> None:
    @task(name="known")
    def work(*args: Any) -> None: ...

    services = Services(queue.name, queue.config, queue.set_progress)
    draw = random.Random(SEED)
    sound = [b"x", b"1", b"1", b"1", b'{"args":[],"kwargs":{}}', b"u", b"known", b"3", b"1", b"1", *[b""] * 9]
    assert len(sound) == len(LEASE_FIELDS)
    modules = set(sys.modules)
    kinds = set()
    for number in range(times(DECODED)):
        values = list(sound)
        # The four that the script itself renders (id, token, deliveries, end) are numbers, or an id that was checked.
        for at in draw.sample(range(4, len(values)), draw.randint(1, 3)):
            value = draw.choice(VALUES)
            if draw.random() < 0.3:
                value = draw.randbytes(draw.randint(0, 12))
            values[at] = value
        began = time.perf_counter()
        found = prepare(Lease(values, "w", 1.0), services)
        assert time.perf_counter() - began < HANG, f"seed {SEED}, lease {number}"
        kinds.add("run" if isinstance(found, Run) else found.kind)
    assert kinds == {"run", "poison", "later"}
    assert set(sys.modules) - modules == set()


def fields(redis: Any) -> list[tuple[str, bytes, bytes]]:
    """(kind, key, member or field) of everything that can be damaged."""
    found: list[tuple[str, bytes, bytes]] = []
    for key in sorted(redis.keys("*")):
        kind = redis.type(key).decode()
        if kind == "hash":
            found += [("hash", key, name) for name in redis.hkeys(key)]
        elif kind == "zset":
            found += [("zset", key, name) for name in redis.zrange(key, 0, -1)]
        else:
            found.append((kind, key, b""))
    return found


def damage(draw: random.Random, place: tuple[str, bytes, bytes]) -> tuple[Any, ...]:
    kind, key, name = place
    value = draw.choice(VALUES)
    if kind == "hash":
        return ("HDEL", key, name) if draw.random() < 0.1 else ("HSET", key, name, value)
    if kind == "zset":
        score = draw.choice(["-inf", "inf", "-1", "0", "1e300", "9007199254740993", "0.5"])
        return ("ZADD", key, score, draw.choice([name, name, value]))
    if kind == "list":
        return ("RPUSH", key, value)
    return ("SADD", key, value) if kind == "set" else ("SET", key, value)


@pytest.mark.slow
def test_any_bytes_in_a_stored_field_are_errors_or_harmless(redis: Redis, states: States, config: QueueConfig) -> None:
    draw, done, refused = random.Random(SEED), 0, 0
    queue = FairQueue(redis, config=config)
    while done < times(SENT):
        redis.flushall()
        walk = Walk(redis, SEED * 1_000_003 + done)
        walk.go(60, queue)
        places = fields(redis)
        states.keep(1)
        calls = recorded(queue, walk)
        for _ in range(40):
            states.bring_back(1)
            some = [damage(draw, draw.choice(places)) for _ in range(10)]
            chosen = draw.sample(calls, min(len(calls), 12))
            began = time.perf_counter()
            with redis.pipeline(transaction=False) as pipe:
                for command in [*some, *chosen]:
                    pipe.execute_command(*command, NEVER_DECODE=True)
                replies = pipe.execute(raise_on_error=False)
            assert time.perf_counter() - began < HANG * len(chosen)
            errors = [reply for reply in replies[len(some) :] if isinstance(reply, Exception)]
            assert all(isinstance(error, ResponseError) for error in errors)
            refused += len(errors)
            done += len(some)
    assert redis.ping()
    assert refused > 0


def recorded(queue: FairQueue, walk: Walk) -> list[tuple[Any, ...]]:
    """Script calls that fit to the state, as they are sent."""
    send, calls = queue._transport.client.execute_command, []

    class Recording:
        def execute_command(self, *args: Any, **options: Any) -> Any:
            if args[0] == "FCALL":
                calls.append(args)
            return send(*args, **options)

        def pipeline(self, *args: Any, **options: Any) -> Any:
            return queue.client.pipeline(*args, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(queue.client, name)

    other = FairQueue(Recording(), config=queue.config)
    for kind in sorted(walk.kinds.keys() - {"repair"}):
        if operation := walk.draw(kind):
            walk.perform(operation, other)
    return calls


SQUATTED: tuple[str, ...] = (
    "stats",
    "ring",
    "users",
    "state:queued",
    "state:started",
    "state:finished",
    "task:sound",
    "user:u",
)
SQUATTED += (
    "queue:user:u:normal",
    "payload:sound",
    "leases:w",
    "alerts",
    "wake",
    "throttled",
    "resolving",
    "groups",
    "grouped",
)


@pytest.mark.parametrize("name", SQUATTED)
def test_a_key_of_another_type_is_reported_and_loses_no_task(redis: Redis, name: str) -> None:
    queue = FairQueue(redis)
    for task_id in ("first", "sound"):
        queue.push(make(task_id), now=1e9)
    queue.pop("w", now=1e9)
    key = PREFIX + name
    had = redis.dump(key)
    redis.delete(key)
    if name.startswith("payload"):
        redis.hset(key, "x", "y")
    else:
        redis.set(key, "squatter")
    for act in (
        lambda: queue.push(make("more"), now=1e9),
        lambda: queue.pop("w", now=1e9),
        lambda: queue.sweep(now=1e9),
    ):
        assert answer(act) in ("", "WRONGTYPE")
    assert key in {violation.key for violation in queue.check_invariants()}
    redis.delete(key)
    if had is not None:
        redis.restore(key, 0, had)
    queue.repair(now=1e9)
    assert queue.check_invariants() == []
    for task_id in ("first", "sound"):
        assert queue.get_task(task_id).payload == {"sound": True}


def answer(act: Callable[[], Any]) -> str:
    """The word with which the server refused a script, empty if it did not."""
    try:
        act()
    except LuaScriptError as error:
        return str(error).partition("failed: ")[2].split(" ")[0]
    return ""


def make(task_id: str) -> Task:
    return Task.create("u", 3, {"sound": True}, task_id=task_id)


def test_a_worker_outlives_thousands_of_damaged_tasks(queue: FairQueue, redis: Redis) -> None:
    done = []

    @task(name="known", max_retries=0)
    def work(*args: Any) -> None:
        done.append(args)

    draw = random.Random(SEED)
    made = [
        Task.create(f"u{n % 7}", 1 + n % 6, {"args": [], "kwargs": {}}, name="known", max_retries=0)
        for n in range(times(2_000))
    ]
    queue.push_batch(made)
    with redis.pipeline(transaction=False) as pipe:
        for sent in made:
            key, value = f"{PREFIX}task:{sent.task_id}", draw.choice(VALUES)
            field = draw.choice(
                ["name", "timeout", "retries", "max_retries", "expires", "due", "sla", "trace", "payload", "run"]
            )
            if field == "payload":
                replace_payload(redis, sent.task_id, value)
            else:
                pipe.hset(key, field, value)
        pipe.execute()
    sound = work.enqueue()
    modules = set(sys.modules)
    Worker(["default"], burst=True, concurrency=2).run()
    assert not {name for name in sys.modules if name.startswith("os.system")} - modules
    assert queue.get_task(sound.id).state is TaskState.FINISHED
    states = queue.get_stats().states
    assert sum(states.get(state, 0) for state in ("queued", "started")) == 0, states
    # The runs that some were made to be of; a damaged record is named, and left to a person.
    assert all(repair.is_fixed or repair.violation.invariant == "record" for repair in queue.repair())
    assert {violation.invariant for violation in queue.check_invariants()} == {"record"}
