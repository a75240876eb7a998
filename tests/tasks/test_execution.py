"""What running a task means to the engine: results, retries, dead letters, batches, progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import BatchResult, Discard, FailureType, Retry, Task, TaskState, current_task, task
from django_fairque.tasks.execution import aexecute, execute, prepare, run_batch
from django_fairque.tasks.run import Run
from django_fairque.tasks.services import Services
from django_fairque.tasks.unknown import UnknownTasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from django_fairque.engine.outcomes import Outcome
    from django_fairque.engine.queue import FairQueue


def run_next(queue: FairQueue, services: Services) -> str:
    """Pop a task, run it, settle it; what the engine made of it."""
    lease = queue.pop("w")
    assert lease is not None
    prepared = prepare(lease, services)
    outcome: Outcome = execute(prepared) if isinstance(prepared, Run) else prepared
    return queue.settle([outcome]).statuses[0]


def test_a_result_is_kept(queue: FairQueue, services: Services) -> None:
    @task
    def work(n: int) -> dict[str, int]:
        return {"twice": 2 * n}

    result = work.enqueue(4)
    assert run_next(queue, services) == "finished"
    assert result.result() == {"twice": 8}


async def test_a_coroutine_runs_on_the_loop(queue: FairQueue, services: Services) -> None:
    @task
    async def work(n: int) -> int:
        return n + 1

    work.enqueue(4)
    lease = queue.pop("w")
    assert lease is not None
    prepared = prepare(lease, services)
    assert isinstance(prepared, Run)
    queue.settle([await aexecute(prepared)])
    assert queue.get_task(lease.task_id).result == 5


def raising(error: BaseException, **options: Any) -> Callable[..., Any]:
    @task(name="failing", **options)
    def work() -> None:
        raise error

    return work.enqueue


@pytest.mark.parametrize(
    ("error", "options", "status", "retries"),
    [
        (OSError("net"), {}, "retried", 1),
        (OSError("net"), {"max_retries": 0}, "dead", 0),
        (OSError("net"), {"retry_on": (ValueError,)}, "dead", 0),
        (OSError("net"), {"backoff": lambda retries, error: None}, "dead", 0),
        (OSError("net"), {"backoff": lambda retries, error: 1 / 0}, "retried", 1),
        (SystemExit(1), {}, "retried", 1),
        (KeyboardInterrupt(), {}, "retried", 1),
        (Retry(5), {"max_retries": 0}, "retried", 0),
        (Discard("old"), {}, "canceled", 0),
    ],
)
def test_what_is_raised_decides(
    queue: FairQueue, services: Services, error: BaseException, options: dict[str, Any], status: str, retries: int
) -> None:
    result = raising(error, **options)()
    assert run_next(queue, services) == status
    assert queue.get_task(result.id).retry_count == retries
    assert str(error) in result.errors[0].error


def test_retries_wait_longer_each_time(queue: FairQueue, services: Services) -> None:
    result = raising(OSError(), backoff={"base": 10, "cap": 15, "jitter": 0})()
    run_next(queue, services)
    first = queue.get_task(result.id).execute_after
    now = (first or 0) + 1
    lease = queue.pop("w", now=now)
    assert lease is not None
    prepared = prepare(lease, services)
    assert isinstance(prepared, Run)
    queue.settle([execute(prepared)], now=now)
    assert queue.get_task(result.id).execute_after == pytest.approx(now + 15)


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 300_000])
def test_a_result_that_can_not_be_kept_is_a_dead_letter(queue: FairQueue, services: Services, value: object) -> None:
    @task
    def work() -> object:
        return value

    work.enqueue()
    assert run_next(queue, services) == "dead"


@pytest.mark.parametrize("payload", [[], {"args": 3, "kwargs": {}}, {"args": []}, "text", None])
def test_a_payload_of_another_shape_is_poison(queue: FairQueue, services: Services, payload: Any) -> None:
    @task(name="known")
    def work() -> None: ...

    queue.push(Task.create("u", 3, payload, name="known"))
    assert run_next(queue, services) == "dead"
    assert queue.dlq.list().items[0].failure_type is FailureType.POISONED


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff", b'{"a":NaN}', b'{"args":[],"args":[],"kwargs":{}}', b"[" * 100_000]
)
def test_an_undecodable_payload_is_poison(queue: FairQueue, redis: Redis, services: Services, raw: bytes) -> None:
    @task(name="known")
    def work() -> None: ...

    task_id = work.enqueue().id
    redis.set(f"fq:{{default:0}}:payload:{task_id}", raw)
    assert run_next(queue, services) == "dead"
    assert queue.dlq.list().items[0].failure_type is FailureType.POISONED


def test_only_registered_names_run_and_others_wait_for_a_deploy(queue: FairQueue) -> None:
    clock = [0.0]
    unknown = UnknownTasks(clock=lambda: clock[0])
    services = Services(queue.name, queue.config, lambda *report: None, unknown=unknown)
    queue.push(Task.create("u", 3, {"args": ["true"], "kwargs": {}}, name="os.system", task_id="x"))
    assert run_next(queue, services) == "retried"
    assert queue.get_task("x").retry_count == 0
    clock[0] = 601
    lease = queue.pop("w", now=(queue.get_task("x").execute_after or 0) + 1)
    assert lease is not None
    outcome = prepare(lease, services)
    assert not isinstance(outcome, Run)
    assert queue.settle([outcome]).statuses == ["dead"]
    assert "no task named 'os.system'" in queue.dlq.list().items[0].reason


def test_bare_payloads_go_to_the_handler(queue: FairQueue) -> None:
    services = Services(queue.name, queue.config, lambda *report: None, handler=lambda payload: payload["n"] + 1)
    queue.push(Task.create("u", 3, {"n": 1}, task_id="x"))
    assert run_next(queue, services) == "finished"
    assert queue.get_task("x").result == 2


def test_a_task_knows_itself_and_reports(queue: FairQueue, services: Services) -> None:
    seen: list[Any] = []

    @task(name="curious", user="who", timeout=60)
    def work(who: str) -> None:
        me = current_task()
        me.progress(1, 2, "half")
        seen.append((me.id, me.name, me.user_id, me.attempt, me.retries_left, me.fence > 0, me.deadline is not None))

    result = work.enqueue("acme")
    run_next(queue, services)
    assert seen == [(result.id, "curious", "acme", 1, 3, True, True)]
    progress = result.progress
    assert progress is not None
    assert (progress.current, progress.total, progress.message) == (1, 2, "half")
    assert current_task().id == ""
    current_task().progress(1, 2)  # inert outside


def batch_of(queue: FairQueue, services: Services, answer: Callable[[list[Any]], Any], n: int = 3) -> list[str]:
    @task(name="batch", batch=10, max_retries=0)
    def work(items: list[int]) -> Any:
        return answer(items)

    work.enqueue_many([((i,), {}) for i in range(n)])
    runs = [prepare(lease, services) for lease in queue.pop_batch(10, "w")]
    return queue.settle(run_batch([run for run in runs if isinstance(run, Run)])).statuses


def by_item(items: list[int]) -> BatchResult:
    result = BatchResult(items)
    result.ok(0, "fine")
    result.fail(1, "broken")
    result.discard(2, "old")
    return result


@pytest.mark.parametrize(
    ("answer", "statuses"),
    [
        (lambda items: None, ["finished"] * 3),
        (lambda items: [10, 11, 12], ["finished"] * 3),
        (lambda items: [10, ValueError("no"), Retry(1)], ["finished", "dead", "retried"]),
        (by_item, ["finished", "dead", "canceled"]),
        (lambda items: [1], ["dead"] * 3),
        (lambda items: 5, ["dead"] * 3),
        (lambda items: 1 / 0, ["dead"] * 3),
    ],
)
def test_each_item_of_a_batch_has_its_outcome(
    queue: FairQueue, services: Services, answer: Callable[[list[Any]], Any], statuses: list[str]
) -> None:
    assert batch_of(queue, services, answer) == statuses


def test_states_follow(queue: FairQueue, services: Services) -> None:
    result = raising(Discard("no"))()
    assert result.state is TaskState.QUEUED
    run_next(queue, services)
    assert result.state is TaskState.QUEUED  # as of the last look
    assert result.refresh().state is TaskState.CANCELED
