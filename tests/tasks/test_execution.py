"""What running a task means to the engine: results, retries, dead letters, batches, progress."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import (
    BatchResult,
    Discard,
    FailureType,
    Retry,
    SoftTimeLimitExceeded,
    Task,
    TaskState,
    TaskUsageError,
    current_task,
    task,
)
from django_fairque.tasks.execution import Run, aexecute, arun_batch, execute, failed, prepare, run_batch
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

    enqueue: Callable[..., Any] = work.enqueue
    return enqueue


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
    states = [result.state]
    run_next(queue, services)
    assert [*states, result.state] == [TaskState.QUEUED, TaskState.CANCELED]
    assert result.task is not None
    assert result.task.state is TaskState.CANCELED


def run_of(queue: FairQueue, services: Services) -> Run:
    lease = queue.pop("w")
    assert lease is not None
    run = prepare(lease, services)
    assert isinstance(run, Run)
    return run


def test_a_traceback_begins_in_the_task(queue: FairQueue, services: Services) -> None:
    def deeper() -> None:
        raise OSError("net")

    @task(name="failing")
    def work() -> None:
        deeper()

    result = work.enqueue()
    run_next(queue, services)
    trace = result.errors[0].traceback
    assert "in work" in trace
    assert "in deeper" in trace
    assert "/execution.py" not in trace


@pytest.mark.parametrize("field", ["name", "user", "retries", "max_retries", "timeout"])
def test_a_damaged_record_is_poison_or_harmless_but_never_a_dead_worker(
    queue: FairQueue, redis: Redis, services: Services, field: str
) -> None:
    result = raising(OSError("net"))()
    if field == "user":
        redis.rename("fq:{default:0}:queue:user:default:normal", b"fq:{default:0}:queue:user:\xff:normal")
        redis.zrem("fq:{default:0}:ring", "default")
        redis.zadd("fq:{default:0}:ring", {b"\xff": 0})
        redis.hset(b"fq:{default:0}:user:\xff", mapping={"ready:3": 1})
    redis.hset(f"fq:{{default:0}}:task:{result.id}", field, b"\xff")
    lease = queue.pop("w")
    assert lease is not None
    prepared = prepare(lease, services)
    outcome = execute(prepared) if isinstance(prepared, Run) else prepared
    assert outcome.kind in ("poison", "fail")


def test_a_time_limit_is_worth_another_attempt_whatever_is_retried(queue: FairQueue, services: Services) -> None:
    assert run_next_of(queue, services, SoftTimeLimitExceeded(), retry_on=(ValueError,)) == "retried"
    run_of_it = raising(OSError(), retry_on=(ValueError,))()
    run = run_of(queue, services)
    assert run.lease.task_id == run_of_it.id
    assert failed(run, SoftTimeLimitExceeded()).delay is not None  # stopped from outside


def run_next_of(queue: FairQueue, services: Services, error: BaseException, **options: Any) -> str:
    raising(error, **options)()
    return run_next(queue, services)


@pytest.mark.parametrize(
    ("own", "given", "expected"), [(None, None, 300), (None, 5, 5), (60, None, 60), (60, 5, 5), (None, 0.5, 0.5)]
)
def test_the_nearest_time_limit_counts(
    queue: FairQueue, own: float | None, given: float | None, expected: float
) -> None:
    @task(name="work", timeout=own)
    def work() -> None: ...

    (work if given is None else work.using(timeout=given)).enqueue()
    assert run_of(queue, Services(queue.name, queue.config, print, timeout=300)).timeout == expected


def test_a_task_pushed_without_a_limit_has_its_functions(queue: FairQueue) -> None:
    @task(name="work", timeout=60)
    def work() -> None: ...

    queue.push(Task.create("u", 3, {"args": [], "kwargs": {}}, name="work"))
    assert run_of(queue, Services(queue.name, queue.config, print, timeout=300)).timeout == 60


def test_a_backoff_function_decides_from_retries_and_error(queue: FairQueue, services: Services) -> None:
    asked: list[Any] = []

    def backoff(retries: int, error: BaseException) -> timedelta:
        asked.append((retries, error))
        return timedelta(minutes=2)

    error = OSError("net")
    raising(error, backoff=backoff)()
    assert execute(run_of(queue, services)).delay == 120
    assert asked == [(0, error)]


@pytest.mark.parametrize("answer", [-1, "soon", float("nan"), True, timedelta(days=-1)])
def test_a_backoff_function_that_answers_nonsense_costs_no_retry(
    queue: FairQueue, services: Services, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raising(OSError("net"), backoff=lambda retries, error: answer)()
    delay = execute(run_of(queue, services)).delay
    assert delay is not None
    assert 1 <= delay <= 1.1
    assert "using the default delay" in caplog.text


@pytest.mark.parametrize("error", [Retry(), Retry(None, "not yet")])
def test_a_retry_without_a_delay_waits_as_after_an_error(queue: FairQueue, services: Services, error: Retry) -> None:
    raising(error, backoff={"base": 50, "jitter": 0})()
    outcome = execute(run_of(queue, services))
    assert (outcome.kind, outcome.delay) == ("later", 50)


def test_a_handler_may_be_a_task_or_a_coroutine(queue: FairQueue) -> None:
    @task
    async def handler(payload: Any) -> Any:
        return payload

    for each in (handler, handler.function):
        queue.push(Task.create("u", 3, {"n": 1}))
        run = run_of(queue, Services(queue.name, queue.config, print, handler=each))
        assert run.definition.is_async
        assert execute(run).body == b'{"n":1}'


def test_a_handler_may_be_any_callable(queue: FairQueue) -> None:
    class Handler(dict[str, Any]):  # not hashable, without a signature of its own
        def __call__(self, payload: Any) -> Any:
            return payload

    queue.push(Task.create("u", 3, [1]))
    assert execute(run_of(queue, Services(queue.name, queue.config, print, handler=Handler()))).body == b"[1]"


def test_without_a_handler_a_bare_payload_waits_for_one(queue: FairQueue, services: Services) -> None:
    queue.push(Task.create("u", 3, {"n": 1}, task_id="x"))
    assert run_next(queue, services) == "retried"
    assert "no HANDLER" in queue.history("x")[0].error


def test_a_name_close_to_a_known_one_is_suggested(queue: FairQueue, services: Services) -> None:
    raising(OSError())
    queue.push(Task.create("u", 3, {"args": [], "kwargs": {}}, name="faling", task_id="x"))
    run_next(queue, services)
    assert "did you mean 'failing'?" in queue.history("x")[0].error


def test_what_waits_for_a_deploy_is_forgotten_in_time() -> None:
    clock = [0.0]
    unknown = UnknownTasks(grace=10, memory=2, clock=lambda: clock[0])
    assert [unknown.may_wait(task_id) for task_id in "abc"] == [True] * 3  # no room for c: it waits on
    clock[0] = 10
    assert [unknown.may_wait(task_id) for task_id in "ac"] == [False, True]
    clock[0] = 19
    assert unknown.may_wait("c") is True
    clock[0] = 20
    assert [unknown.may_wait(task_id) for task_id in "cd"] == [False, True]
    assert unknown.may_wait("b") is True  # not seen for long when d needed room: another worker had run it


def test_a_coroutine_task_can_run_without_a_loop(queue: FairQueue, services: Services) -> None:
    @task
    async def work() -> str:
        return current_task().name

    work.enqueue()
    assert execute(run_of(queue, services)).body.decode() == f'"{work.name}"'


async def test_a_canceled_coroutine_is_for_its_worker_to_explain(queue: FairQueue, services: Services) -> None:
    started = asyncio.Event()

    @task(name="single")
    async def work() -> None:
        started.set()
        await asyncio.sleep(60)

    @task(name="many", batch=5)
    async def many(items: list[int]) -> None:
        started.set()
        await asyncio.sleep(60)

    work.enqueue()
    many.enqueue(1)
    for _ in range(2):
        started.clear()
        running = asyncio.create_task(aexecute(run_of(queue, services)))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.parametrize(("error", "kind"), [(OSError("net"), "fail"), (SystemExit(1), "fail"), (Retry(5), "later")])
async def test_what_a_coroutine_raises_decides_as_well(
    queue: FairQueue, services: Services, error: BaseException, kind: str
) -> None:
    @task
    async def work() -> None:
        raise error

    work.enqueue()
    outcome = await aexecute(run_of(queue, services))
    assert (outcome.kind, outcome.delay is not None) == (kind, True)
    assert current_task().id == ""


async def test_a_batch_of_coroutines_is_one_call(queue: FairQueue, services: Services) -> None:
    @task(batch=5)
    async def work(items: list[int]) -> list[Any]:
        current_task().progress(1, 1)
        return [item or ValueError("zero") for item in items]

    work.enqueue_many([((n,), {}) for n in range(3)])
    runs = [run for run in (prepare(lease, services) for lease in queue.pop_batch(5, "w")) if isinstance(run, Run)]
    assert [outcome.kind for outcome in await arun_batch(runs)] == ["fail", "finish", "finish"]
    work.enqueue(0)
    assert (await aexecute(run_of(queue, services))).kind == "fail"
    assert current_task().id == ""


def test_a_batch_of_one_is_a_batch(queue: FairQueue, services: Services) -> None:
    @task(batch=5)
    def work(items: list[int]) -> list[int]:
        return [len(items)]

    result = work.enqueue(7)
    assert run_next(queue, services) == "finished"
    assert result.result() == 1


def test_one_bad_result_of_a_batch_is_its_own(queue: FairQueue, services: Services) -> None:
    assert batch_of(queue, services, lambda items: [1, object(), "x" * 300_000]) == ["finished", "dead", "dead"]


def test_an_item_of_which_nothing_is_said_is_not_lost(queue: FairQueue, services: Services) -> None:
    def answer(items: list[Any]) -> BatchResult:
        result = BatchResult(len(items))
        result.ok(0)
        result.retry(1, 5, "busy")
        return result

    assert batch_of(queue, services, answer) == ["finished", "retried", "dead"]
    assert "says nothing of this item" in queue.dlq.list().items[0].reason


@pytest.mark.parametrize("payload", [{"args": [], "kwargs": {}}, {"args": [1], "kwargs": {"a": 1}}])
def test_a_batch_item_of_another_shape_is_poison(queue: FairQueue, services: Services, payload: Any) -> None:
    @task(name="batch", batch=5)
    def work(items: list[Any]) -> None: ...

    queue.push(Task.create("u", 3, payload, name="batch"))
    assert run_next(queue, services) == "dead"
    assert queue.dlq.list().items[0].failure_type is FailureType.POISONED


@pytest.mark.parametrize("index", [-1, 3, "0", 0.0, True, None])
def test_an_item_that_is_not_there_can_not_be_spoken_of(index: Any) -> None:
    with pytest.raises(TaskUsageError, match="an integer from 0 to 2"):
        BatchResult(3).ok(index)


def test_a_result_is_no_error_and_an_error_no_result() -> None:
    with pytest.raises(TaskUsageError, match=r"use fail\(0"):
        BatchResult(3).ok(0, ValueError())
    with pytest.raises(TaskUsageError, match="exception or text"):
        BatchResult(3).fail(0, 5)  # type: ignore[arg-type]


def test_the_time_of_a_batch_is_shared(queue: FairQueue, services: Services) -> None:
    @task(batch=4)
    def work(items: list[int]) -> None:
        sum(range(200_000))

    work.enqueue_many([((n,), {}) for n in range(4)])
    runs = [run for run in (prepare(lease, services) for lease in queue.pop_batch(5, "w")) if isinstance(run, Run)]
    started = time.perf_counter()
    shares = [outcome.took or 0 for outcome in run_batch(runs)]
    assert 0 < sum(shares) <= time.perf_counter() - started
    assert len(set(shares)) == 1
