"""Tests of payloads and records that can't be run, because they are damaged or have another shape."""

from __future__ import annotations

import pytest

from django_fairque import FailureType
from django_fairque.tasks.execution import Run, Services, execute, prepare
from tests.fixture_types import FairQueue, Redis
from tests.leases import pop
from tests.stored_tasks import replace_payload
from tests.tasks.helpers import noop, raising, run_next
from tests.user_records import change_record


@pytest.fixture
def services(queue: FairQueue) -> Services:
    """Return the services of a worker that checks no signatures, so payloads must be harmless by themselves."""
    return Services(queue.name, queue.config, queue.set_progress, signing="off")


@pytest.mark.parametrize(
    "raw",
    [
        *(b"[]", b'{"args":3,"kwargs":{}}', b'{"args":[]}', b'"text"', b"null"),
        *(b"", b"{", b"\xff", b'{"a":NaN}', b'{"args":[],"args":[],"kwargs":{}}', b"[" * 100_000),
    ],
)
def test_a_payload_that_can_not_be_read_or_has_another_shape_is_poison(
    queue: FairQueue, redis: Redis, services: Services, raw: bytes
) -> None:
    replace_payload(redis, noop().enqueue().id, raw)
    assert run_next(queue, services) == "dead"
    assert queue.dlq.list().items[0].failure_type is FailureType.POISONED


@pytest.mark.parametrize("field", ["timeout", "retries", "ready", "created"])
def test_a_number_beyond_floats_is_poison_or_harmless(
    queue: FairQueue, redis: Redis, services: Services, field: str
) -> None:
    redis.hset(f"fq:{{default:0}}:task:{noop().enqueue().id}", field, b"9" * 400)
    assert run_next(queue, services) in ("dead", "finished")


@pytest.mark.parametrize("field", ["name", "user", "retries", "max_retries", "timeout"])
def test_a_damaged_record_is_poison_or_harmless_but_never_a_dead_worker(
    queue: FairQueue, redis: Redis, services: Services, field: str
) -> None:
    result = raising(OSError("net"))()
    damaged = b"\xfe"  # no UTF-8; in the ring 255 would begin the name of a group
    if field == "user":
        redis.rename("fq:{default:0}:queue:user:default:normal", b"fq:{default:0}:queue:user:%b:normal" % damaged)
        redis.zrem("fq:{default:0}:ring", "default")
        redis.zadd("fq:{default:0}:ring", {damaged: 0})
        change_record(redis, b"fq:{default:0}:user:%b" % damaged, ready_3=1)
    redis.hset(f"fq:{{default:0}}:task:{result.id}", field, damaged)
    prepared = prepare(pop(queue), services)
    outcome = execute(prepared) if isinstance(prepared, Run) else prepared
    assert outcome.kind in ("poison", "fail")
