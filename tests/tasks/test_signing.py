"""Tests that an attacker with access to the server, but without the key, can't make a worker run anything."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
import time
from typing import Any
from unittest.mock import patch

import pytest

from django_fairque import (
    ConfigurationError,
    FailureType,
    FairQueue,
    FairQueueConfig,
    Task,
    TaskSignatureError,
    UnsignedTaskError,
    task,
)
from django_fairque.conf import get_queue
from django_fairque.conf.current import signing_mode
from django_fairque.engine.model import signature as signatures
from django_fairque.engine.model.ids import new_task_id
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.queue.used_keys import replace_used_keys
from django_fairque.tasks import signing
from django_fairque.tasks.execution import Services
from django_fairque.tasks.schedules import sync_schedules
from django_fairque.testing import run_tasks
from tests.fixture_types import Redis, Server, Settings
from tests.leases import pop
from tests.stored_tasks import replace_payload, stored_payload
from tests.topologies import wait_for

from .helpers import run_next

KEY = "fq:{default:0}"
ran: list[Any] = []


@pytest.fixture(autouse=True)
def works(monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    monkeypatch.setattr(signing, "_signature_errors", signing._SignatureErrorLog())


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    settings.SECRET_KEY = "one key of the project, long enough to be one"
    settings.SECRET_KEY_FALLBACKS = []
    return get_queue()


def unsigned() -> Any:
    """Push as somebody who has no key."""
    return patch.object(signatures.DEFAULT_KEY, "read", lambda: None)


def declare() -> Any:
    @task(name="shop.charge", user="user")
    def charge(user: str, amount: int = 1) -> None:
        ran.append((user, amount))

    @task(name="shop.refund", user="user")
    def refund(user: str, amount: int = 1) -> None:
        ran.append(("refund", user, amount))

    return charge


def run(queue: FairQueue) -> str:
    return str(run_next(queue, Services(queue.name, queue.config, queue.set_progress)))


def spoil(redis: Redis, task_id: str, old: bytes, new: bytes) -> None:
    replace_payload(redis, task_id, stored_payload(redis, task_id).replace(old, new))


def refused(queue: FairQueue, reason: str) -> None:
    """The one task of the queue is a dead letter, and nothing ran."""
    assert run(queue) == "dead"
    (entry,) = queue.dlq.list().items
    assert entry.failure_type is FailureType.POISONED
    assert "TaskSignatureError: " in entry.reason
    assert reason in entry.reason
    assert ran == []


def test_a_task_that_the_application_sends_runs(queue: FairQueue, redis: Redis) -> None:
    result = declare().enqueue("ä", 3)
    stored = stored_payload(redis, result.id)
    assert stored.startswith(b'{"args":["\xc3\xa4",3],"kwargs":{}}\x1e1')
    assert len(stored) == len(b'{"args":["\xc3\xa4",3],"kwargs":{}}') + 24
    kept = queue.get_task(result.id)
    assert kept is not None
    assert kept.payload == {"args": ["ä", 3], "kwargs": {}}
    assert kept.payload_bytes == '{"args":["ä",3],"kwargs":{}}'.encode()
    assert run(queue) == "finished"
    assert ran == [("ä", 3)]


@pytest.mark.parametrize("tail", [b"", b"\x1e", b"\x1e1", b"\x1e*", b"\x1e1" + b"A" * 22, b"\x1e" + b"\xff" * 23])
def test_a_forged_payload_is_not_run(queue: FairQueue, redis: Redis, tail: bytes) -> None:
    result = declare().enqueue("a")
    replace_payload(redis, result.id, b'{"args":["a",1000000],"kwargs":{}}' + tail)
    refused(queue, "the signature is wrong" if tail.strip(b"\x1e") else "no signature")


def test_a_changed_payload_with_the_old_signature_is_not_run(queue: FairQueue, redis: Redis) -> None:
    spoil(redis, declare().enqueue("a", 1).id, b"1]", b"9]")
    refused(queue, "the signature is wrong")


def test_payloads_of_two_tasks_can_not_be_exchanged(queue: FairQueue, redis: Redis) -> None:
    charge = declare()
    ids = [charge.enqueue("a", amount).id for amount in (1, 2)]
    values = [stored_payload(redis, task_id) for task_id in ids]
    for task_id, value in zip(ids, reversed(values), strict=True):
        replace_payload(redis, task_id, value)
    assert [run(queue), run(queue)] == ["dead", "dead"]
    assert ran == []


@pytest.mark.parametrize(("field", "value"), [("name", "shop.refund"), ("run", "another")])
def test_a_signature_is_bound_to_the_name_and_the_run(queue: FairQueue, redis: Redis, field: str, value: str) -> None:
    run_of = (declare().s("a") >> declare().s("b")).enqueue()
    redis.hset(f"{KEY}:task:{run_of.results[0].id}", field, value)
    refused(queue, "the signature is wrong")


def test_a_signature_is_bound_to_the_user_and_the_queue(queue: FairQueue) -> None:
    declare().enqueue("a")
    lease = pop(queue)
    other = Lease([b"b" if value == b"a" else value for value in lease._values], "w", 0.0)
    place = {"queue": queue.name, "prefix": queue.config.prefix}
    signing.check(lease, **place, mode=signing_mode())
    for checked, changes in ((other, {}), (lease, {"queue": "another"}), (lease, {"prefix": "another"})):
        with pytest.raises(TaskSignatureError, match="the signature is wrong"):
            signing.check(checked, **{**place, **changes}, mode=signing_mode())


def test_a_queue_created_by_code_signs_as_configured(
    queue: FairQueue, redis: Redis, server: Server, settings: Settings
) -> None:
    declare()
    mine = FairQueue(redis)
    mine.push(Task.create("a", 3, {"args": ["a"], "kwargs": {}}, name="shop.charge"))
    assert run(queue) == "finished"
    ran.clear()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "SIGNING": "off"}
    mine.push(Task.create("a", 3, {"args": ["a"], "kwargs": {}}, name="shop.charge"))
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    refused(queue, "no signature")


def test_an_old_payload_is_not_run_under_a_new_id(queue: FairQueue, redis: Redis) -> None:
    old = declare().enqueue("a")
    value = stored_payload(redis, old.id)
    assert run(queue) == "finished"
    ran.clear()
    body, _ = signatures.split_signature(value)
    with unsigned():
        queue.push(
            Task.create("a", 3, json.loads(body), name="shop.charge", task_id="new").with_signature(value[len(body) :])
        )
    refused(queue, "the signature is wrong")


def test_a_task_pushed_without_the_key_is_not_run(queue: FairQueue, caplog: pytest.LogCaptureFixture) -> None:
    declare()
    with unsigned():
        queue.push(Task.create("a", 3, {"args": ["a", 5], "kwargs": {}}, name="shop.charge"))
    with caplog.at_level(logging.ERROR, "django_fairque.security"):
        refused(queue, "no signature")
    (record,) = caplog.records
    assert "was not run" in record.getMessage()
    assert "queue default" in record.getMessage()


def test_many_forged_tasks_write_few_log_lines(queue: FairQueue, caplog: pytest.LogCaptureFixture) -> None:
    declare()
    with unsigned():
        queue.push_batch([Task.create("a", 3, {}, name="shop.charge") for _ in range(50)])
    with caplog.at_level(logging.ERROR, "django_fairque.security"):
        assert {run(queue) for _ in range(50)} == {"dead"}
    assert 1 <= len(caplog.records) <= 10


def test_a_key_is_replaced_while_tasks_wait(queue: FairQueue, settings: Settings) -> None:
    declare().enqueue("a")
    declare().enqueue("b")
    old, settings.SECRET_KEY = settings.SECRET_KEY, "the next key of the project, as long as the other"
    settings.SECRET_KEY_FALLBACKS = [old]
    assert run(queue) == "finished"
    settings.SECRET_KEY_FALLBACKS = []
    replace_used_keys(queue, [signatures.fingerprint(settings.SECRET_KEY)])
    assert run(queue) == "dead"
    (entry,) = queue.dlq.list().items
    assert "SECRET_KEY_FALLBACKS" in entry.reason

    queue.dlq.requeue(entry.entry_id)  # requeueing does not sign the stored task again
    assert run(queue) == "dead"
    settings.SECRET_KEY_FALLBACKS = [old]
    queue.dlq.requeue(queue.dlq.list().items[0].entry_id)
    assert run(queue) == "finished"
    assert ran == [("a", 1), ("b", 1)]


def test_edited_payloads_are_signed(queue: FairQueue, settings: Settings) -> None:
    for user in ("a", "b", "c"):
        declare().enqueue(user)
    settings.SECRET_KEY = "another key altogether, and no fallback for it"
    replace_used_keys(queue, [])
    assert [run(queue) for _ in range(3)] == ["dead"] * 3
    queue.dlq.requeue(queue.dlq.list().items[0].entry_id, {"args": ["a", 7], "kwargs": {}})
    assert (run(queue), ran) == ("finished", [("a", 7)])
    assert queue.dlq.requeue_all({"args": ["x"], "kwargs": {}}) == 2
    assert [run(queue) for _ in range(2)] == ["finished"] * 2


def test_signing_is_introduced_without_losing_a_task(queue: FairQueue, server: Server, settings: Settings) -> None:
    """From off to on: tasks without signatures wait in the queue, and producers of both kinds are at work."""

    def says(mode: str) -> None:
        settings.FAIRQUE = {"REDIS": {"URL": server.url}, "SIGNING": mode}

    charge = declare()
    says("off")
    charge.enqueue("before", 1)
    says("verify-only")
    assert run(queue) == "finished"
    charge.enqueue("signed", 1)
    says("off")  # a web process that has not been restarted
    charge.enqueue("late", 1)
    assert run(queue) == "finished"  # and a worker like that: it ignores what it finds
    says("verify-only")
    assert run(queue) == "finished"
    charge.enqueue("last", 1)
    says("on")
    assert run(queue) == "finished"
    assert len(ran) == 4


def test_verify_only_refuses_a_forgery(queue: FairQueue, server: Server, redis: Redis, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "SIGNING": "verify-only"}
    spoil(redis, declare().enqueue("a", 1).id, b"1]", b"9]")
    refused(queue, "the signature is wrong")


def test_bare_payloads_are_signed_too(queue: FairQueue, redis: Redis) -> None:
    services = Services(queue.name, queue.config, queue.set_progress, handler=ran.append)
    queue.push(Task.create("a", 3, {"mine": 1}))
    assert run_next(queue, services) == "finished"
    assert ran == [{"mine": 1}]
    task_id = new_task_id()
    queue.push(Task.create("a", 3, {"mine": 1}, task_id=task_id))
    replace_payload(redis, task_id, b'{"mine":2}')
    assert run_next(queue, services) == "dead"
    assert ran == [{"mine": 1}]


def test_debounced_tasks_run_with_the_last_payload(queue: FairQueue) -> None:
    @task(name="shop.index", debounce=30, user="user")
    def index(user: str) -> None:
        ran.append(user)

    first = index.enqueue("a")
    assert index.enqueue("a").id == first.id
    queue.run_now(first.id)
    assert run(queue) == "finished"
    assert ran == ["a"]


def test_tasks_of_a_signed_schedule_run(queue: FairQueue) -> None:
    queue.schedules.add("nightly", task=declare().s("a"), every=60, start=0, now=1000.0)
    assert len(queue.schedules.fire_due(now=1030.0)) == 1
    queue.schedules.run_now("nightly")
    assert [run(queue), run(queue)] == ["finished", "finished"]


def test_a_schedule_changed_on_the_server_fires_nothing_that_runs(queue: FairQueue, redis: Redis) -> None:
    queue.schedules.add("nightly", task=declare().s("a", 1), every=60)
    kept: Any = redis.hget(f"{KEY}:schedules", "nightly")
    redis.hset(f"{KEY}:schedules", "nightly", kept.replace(b"shop.charge", b"shop.refund"))
    queue.schedules.run_now("nightly")
    refused(queue, "the signature is wrong")


def test_a_schedule_added_without_the_key_fires_nothing_that_runs(queue: FairQueue) -> None:
    with unsigned():
        queue.schedules.add("nightly", task=declare().s("a", 1), every=60)
    queue.schedules.run_now("nightly")
    refused(queue, "no signature")


def test_schedules_of_settings_are_signed_again_with_a_new_key(
    queue: FairQueue, server: Server, settings: Settings
) -> None:
    declare()
    schedules = {"nightly": {"TASK": "shop.charge", "ARGS": ["a"], "EVERY": 60}}
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "SCHEDULES": schedules}
    sync_schedules()
    settings.SECRET_KEY = "another key altogether, and no fallback for it"
    sync_schedules()
    queue.schedules.run_now("nightly")
    assert run(queue) == "finished"


def test_other_schedules_are_signed_by_hand(queue: FairQueue, settings: Settings) -> None:
    queue.schedules.add("nightly", task=declare().s("a"), every=60)
    due = queue.schedules.get("nightly").next_at
    settings.SECRET_KEY = "another key altogether, and no fallback for it"
    queue.schedules.sign("nightly")
    assert queue.schedules.get("nightly").next_at == due
    queue.schedules.run_now("nightly")
    assert run(queue) == "finished"


PRODUCER = """
    import sys
    from redis import Redis
    from django_fairque import FairQueue, Task
    from django_fairque.tasks import signing
    signing.sign_with(sys.argv[2])
    payload = {"args": ["a", 8], "kwargs": {}}
    FairQueue(Redis.from_url(sys.argv[1])).push(Task.create("a", 3, payload, name="shop.charge"))
"""


@pytest.mark.parametrize(("key", "status"), [("the project's", "finished"), ("another", "released")])
def test_a_producer_without_settings_signs_with_a_key_that_it_is_given(
    queue: FairQueue, server: Server, settings: Settings, key: str, status: str
) -> None:
    declare()
    settings.SECRET_KEY = "the project's"
    command = [sys.executable, "-c", textwrap.dedent(PRODUCER), server.url, key]
    subprocess.run(command, check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert run(queue) == status


@pytest.mark.parametrize("key", ["", b"", None, 3])
def test_signing_without_a_key_is_a_mistake(key: Any) -> None:
    with pytest.raises(TypeError, match="expects the SECRET_KEY"):
        signing.sign_with(key)


def test_no_two_envelopes_are_signed_alike() -> None:
    one = signatures.SignedFields("fq", "default", "ab", "c", b"{}", "1", "2")
    others = [
        one._replace(name="a", user_id="bc"),
        one._replace(user_id="c1", task_id=""),
        one._replace(task_id="12", run_id=""),
        one._replace(prefix="f", queue="qdefault"),
        one._replace(user_id="ç", task_id="1"),
        one._replace(run_id="", payload=b"2{}"),
    ]
    seals = [signatures.sign_payload(fields, "key") for fields in (one, *others)]
    assert len(set(seals)) == len(seals)


@pytest.mark.parametrize(
    ("given", "mode"), [("on", "on"), (True, "on"), (False, "off"), ("off", "off"), ("verify-only", "verify-only")]
)
def test_the_setting_takes_modes_and_booleans(given: Any, mode: str) -> None:
    assert FairQueueConfig.model_validate({"signing": given}).signing == mode


def test_the_environment_sets_the_mode(server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    monkeypatch.setenv("FAIRQUE_SIGNING", "off")
    assert FairQueueConfig.from_settings().signing == "off"


@pytest.mark.parametrize("given", ["yes", 1, None, ["on"]])
def test_an_unknown_mode_is_a_mistake(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="verify-only"):
        FairQueueConfig.model_validate({"signing": given})


def test_a_push_without_a_signature_is_refused_where_workers_require_one(queue: FairQueue, redis: Redis) -> None:
    declare()
    queue.heartbeat("w", {}, requires_signatures=True)
    outsider = FairQueue(redis)
    with unsigned():
        for push in (
            lambda: outsider.push(Task.create("acme", 3, {"args": ["acme"], "kwargs": {}}, name="shop.charge")),
            lambda: outsider.push_batch([Task.create("acme", 3, "x" * n) for n in range(3)]),
            lambda: outsider.push_graph([Task.create("acme", 3, None, task_id="t")], "run"),
            lambda: outsider.deliver([Task.create("acme", 3, None)], {}),
        ):
            with pytest.raises(UnsignedTaskError, match=r"nothing of this call was pushed.*sign_with\(key\)"):
                push()
    assert queue.pop("w") is None
    outsider.push(Task.create("acme", 3, {"args": ["acme"], "kwargs": {}}, name="shop.charge"))
    assert run(queue) == "finished"


def test_a_push_whose_reply_was_lost_is_answered_as_the_first_time(queue: FairQueue, redis: Redis) -> None:
    from django_fairque.engine.pushing.push import push_args

    with unsigned():
        commands = queue._shards.home
        call = commands.call("push", push_args(commands, [Task.create("acme", 3, 1, task_id="t")]), None, reply="nonce")
        first = queue._run(_yielding(call))
        queue.heartbeat("w", {}, requires_signatures=True)
        assert queue._run(_yielding(call))[1:] == first[1:]


def _yielding(call: Any) -> Any:
    return (yield call)


def test_a_queue_takes_unsigned_tasks_again_when_no_worker_requires_signatures(queue: FairQueue) -> None:
    def push(now: float) -> None:
        with unsigned():
            queue.push(Task.create("acme", 3, None), now=now)

    queue.heartbeat("old", {}, requires_signatures=False, now=1000)
    push(1000)
    queue.heartbeat("new", {}, requires_signatures=True, now=1001)
    queue.heartbeat("old", {}, requires_signatures=False, now=1002)  # some of its tasks would be dead letters
    queue.heartbeat("another", {}, now=2000)  # a version that does not report this
    with pytest.raises(UnsignedTaskError):
        push(2000)  # no worker has reported the opposite
    queue.heartbeat("new", {}, requires_signatures=True, now=2001)
    queue.heartbeat("old", {}, requires_signatures=False, now=2060)
    with pytest.raises(UnsignedTaskError):
        push(2060)
    queue.heartbeat("old", {}, requires_signatures=False, now=2062)
    push(2062)


def test_a_schedule_that_was_kept_without_a_signature_fires(queue: FairQueue) -> None:
    with unsigned():
        queue.schedules.add("old", task=Task.create("acme", 3, None), every=60)
    queue.heartbeat("w", {}, requires_signatures=True)
    (fired,) = queue.schedules.fire_due(now=time.time() + 61)
    assert not fired.error
    with pytest.raises(UnsignedTaskError):
        queue.schedules.run_now("old")


@pytest.mark.parametrize(("mode", "required"), [("on", True), ("verify-only", False), ("off", False)])
def test_workers_report_whether_they_require_signatures(
    queue: FairQueue, redis: Redis, settings: Settings, mode: str, required: bool
) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "SIGNING": mode}

    @task(name="shop.wait", user="user")
    def wait_for_the_heartbeat(user: str) -> None:  # a worker with nothing to do may end before its first one
        wait_for(lambda: bool(queue.workers()))

    wait_for_the_heartbeat.enqueue("acme")
    run_tasks()
    assert (int(redis.hget(f"{KEY}:stats", "signed") or 0) > 0) is required
