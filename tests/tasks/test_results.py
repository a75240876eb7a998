"""`TaskResult`: waiting, results, what there is instead of one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from django_fairque import TaskCanceledError, TaskFailedError, TaskNotFinishedError, TaskNotFoundError, TaskResult, task
from django_fairque.conf import aclose_queues

if TYPE_CHECKING:
    from django_fairque.engine.queue import FairQueue


def enqueue() -> TaskResult:
    @task(name="work")
    def work() -> None: ...

    return work.enqueue()


def end(queue: FairQueue, how: str) -> None:
    lease = queue.pop("w")
    assert lease is not None
    if how == "finish":
        queue.finish(lease, {"n": 1})
    elif how == "fail":
        queue.fail(lease, "no such address", retry=False)
    else:
        queue.cancel(lease.task_id)


def test_there_is_no_result_before_the_end(queue: FairQueue) -> None:
    with pytest.raises(TaskNotFinishedError, match="it is queued"):
        enqueue().result()


def test_waiting_ends_with_the_task(queue: FairQueue) -> None:
    result = enqueue()
    ending = threading.Thread(target=end, args=(queue, "finish"))
    ending.start()
    assert result.wait(timeout=30) == {"n": 1}
    ending.join()


def test_waiting_ends_with_the_time(queue: FairQueue) -> None:
    with pytest.raises(TimeoutError, match=r"had not ended after 0\.01 s; it is queued"):
        enqueue().wait(timeout=0.01)


def test_a_failure_is_told_by_its_text(queue: FairQueue) -> None:
    result = enqueue()
    end(queue, "fail")
    with pytest.raises(TaskFailedError, match="no such address"):
        result.result()
    assert result.errors[-1].error == "no such address"


def test_a_canceled_task_has_no_result(queue: FairQueue) -> None:
    result = enqueue()
    end(queue, "cancel")
    with pytest.raises(TaskCanceledError):
        result.wait(timeout=30)


def test_an_unknown_id_is_an_error(queue: FairQueue) -> None:
    result = TaskResult("nothing")
    assert result.state is None
    with pytest.raises(TaskNotFoundError, match="does not know task 'nothing'"):
        result.result()
    with pytest.raises(TaskNotFoundError):
        result.cancel()


def test_its_place_among_its_users_tasks(queue: FairQueue) -> None:
    results = [enqueue() for _ in range(3)]
    assert [result.position for result in results] == [0, 1, 2]


async def test_the_coroutines_say_the_same(queue: FairQueue) -> None:
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
