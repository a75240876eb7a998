"""`TaskResult`: waiting, results, what there is instead of one."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import pytest

from django_fairque import (
    TaskCanceledError,
    TaskFailedError,
    TaskNotFinishedError,
    TaskNotFoundError,
    TaskResult,
    TaskState,
    TaskValidationError,
    TaskWaitTimeoutError,
)
from django_fairque.conf import aclose_queues
from django_fairque.engine.queue.queue import FairQueue
from tests.leases import pop

from .helpers import noop


def enqueue() -> TaskResult:
    result: TaskResult = noop().enqueue()
    return result


def end(queue: FairQueue, how: str) -> None:
    lease = pop(queue)
    if how == "finish":
        queue.finish(lease, {"n": 1})
    elif how == "fail":
        queue.fail(lease, "no such address", retry=False)
    else:
        queue.cancel(lease.task_id)


def test_a_task_that_has_not_ended_has_no_result(queue: FairQueue) -> None:
    result = enqueue()
    with pytest.raises(TaskNotFinishedError, match="it is queued"):
        result.result()
    with pytest.raises(
        TimeoutError, match=r"after 0\.01 s; it is queued: .* show \S+ --queue default names the reason"
    ):
        result.wait(timeout=0.01)
    end(queue, "finish")
    assert result.wait(timeout=0) == {"n": 1}, "the result is read once more after the time"


def test_waiting_ends_with_the_task(queue: FairQueue) -> None:
    result = enqueue()
    ending = threading.Thread(target=end, args=(queue, "finish"))
    ending.start()
    assert result.wait(timeout=30) == {"n": 1}
    ending.join()


def test_an_unknown_id_is_an_error(queue: FairQueue) -> None:
    result = TaskResult("nothing")
    assert result.state is None
    with pytest.raises(TaskNotFoundError, match="does not know task 'nothing'"):
        result.result()
    with pytest.raises(TaskNotFoundError, match="it may have been forgotten"):
        result.wait()
    with pytest.raises(TaskNotFoundError):
        result.cancel()


def test_a_canceled_task_has_no_result(queue: FairQueue) -> None:
    result = enqueue()
    end(queue, "cancel")
    with pytest.raises(TaskCanceledError):
        result.wait(timeout=30)


def test_a_result_knows_its_position_among_the_tasks_of_its_user(queue: FairQueue) -> None:
    results = [enqueue() for _ in range(3)]
    assert [result.position for result in results] == [0, 1, 2]


async def test_a_result_estimates_when_its_task_starts(queue: FairQueue) -> None:
    result = enqueue()
    assert result.starts_in().reason == "no_worker"
    queue.heartbeat("w", {})
    assert result.starts_in().high == (await result.astarts_in()).high == 5
    await aclose_queues()


async def test_coroutines_read_results_and_errors(queue: FairQueue) -> None:
    done, failed = enqueue(), enqueue()
    assert await done.aposition() == 0
    end(queue, "finish")
    end(queue, "fail")
    assert await done.aresult() == {"n": 1}
    assert await done.await_(timeout=30) == {"n": 1}
    assert await done.aprogress() is None
    with pytest.raises(TaskFailedError):
        await failed.await_(timeout=30)
    assert len(await failed.aerrors()) == 1
    await aclose_queues()


@pytest.mark.parametrize("timeout", [-1, "5", float("nan"), True])
def test_a_wrong_time_to_wait_is_refused(queue: FairQueue, timeout: Any) -> None:
    with pytest.raises(TaskValidationError, match="timeout must be a number of seconds"):
        enqueue().wait(timeout)


def test_a_failed_task_raises_its_error_as_text(queue: FairQueue) -> None:
    result = enqueue()
    queue.fail(pop(queue), ZeroDivisionError("division by zero"), retry=False)
    with pytest.raises(TaskFailedError) as caught:
        result.wait(timeout=30)
    assert (caught.value.task_id, caught.value.error) == (result.id, "ZeroDivisionError: division by zero")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert result.errors[-1].error == caught.value.error


def test_an_expired_task_has_failed(queue: FairQueue) -> None:
    result = noop(expires=1).enqueue()
    now = time.time() + 5
    while queue.sweep(now=now).more:
        pass
    assert result.state is TaskState.FAILED
    with pytest.raises(TaskFailedError, match="not started"):
        result.result()


async def test_coroutines_wait_for_a_result_until_the_timeout(queue: FairQueue) -> None:
    result = enqueue()
    with pytest.raises(TaskWaitTimeoutError, match="it is queued"):
        await result.await_(timeout=0.01)
    end(queue, "cancel")
    with pytest.raises(TaskCanceledError):
        await result.await_(timeout=30)
    with pytest.raises(TaskNotFoundError):
        await TaskResult("nothing").await_()
    await aclose_queues()


def test_a_result_that_was_removed_raises_an_explanation(queue: FairQueue) -> None:
    config = queue.config.model_copy(update={"max_result_bytes": 3000})
    limited = type(queue)(queue.client, queue.name, config)
    first, second = enqueue(), enqueue()
    for lease in limited.pop_batch(2, "w"):
        limited.finish(lease, "x" * 2000)
    assert second.result() == "x" * 2000
    with pytest.raises(TaskNotFoundError, match=r"its result \(2,002 bytes\) was removed, because .* max_result_bytes"):
        first.result()
