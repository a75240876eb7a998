"""Tasks that no registered function runs: of unknown names, and bare payloads with a handler and without."""

from __future__ import annotations

from typing import Any

import pytest

from django_fairque import Task, task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks.execution import MAX_UNKNOWN_NAMES, Run, Services, UnknownTasks, execute, prepare
from tests.leases import pop
from tests.tasks.helpers import raising, run_next, run_of


def test_only_registered_names_run_and_others_wait_for_a_deploy(queue: FairQueue) -> None:
    clock = [0.0]
    unknown = UnknownTasks(clock=lambda: clock[0])
    services = Services(queue.name, queue.config, lambda *report: None, unknown=unknown)
    queue.push(Task.create("u", 3, {"args": ["true"], "kwargs": {}}, name="os.system", task_id="x"))
    assert run_next(queue, services) == "retried"
    assert queue.get_task("x").retry_count == 0
    clock[0] = 601
    outcome = prepare(pop(queue, now=(queue.get_task("x").execute_after or 0) + 1), services)
    assert not isinstance(outcome, Run)
    assert queue.settle([outcome]).statuses == ["dead"]
    assert "no task named 'os.system'" in queue.dlq.list().items[0].reason


def test_a_name_close_to_a_known_one_is_suggested(queue: FairQueue, services: Services) -> None:
    raising(OSError())
    queue.push(Task.create("u", 3, {"args": [], "kwargs": {}}, name="faling", task_id="x"))
    run_next(queue, services)
    assert "did you mean 'failing'?" in queue.history("x")[0].error


def test_unknown_tasks_are_forgotten_after_a_time() -> None:
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


def test_bare_payloads_go_to_the_handler(queue: FairQueue) -> None:
    services = Services(queue.name, queue.config, lambda *report: None, handler=lambda payload: payload["n"] + 1)
    queue.push(Task.create("u", 3, {"n": 1}, task_id="x"))
    assert run_next(queue, services) == "finished"
    assert queue.get_task("x").result == 2


def test_a_handler_may_be_a_task_or_a_coroutine(queue: FairQueue) -> None:
    @task
    async def handler(payload: Any) -> Any:
        return payload

    for given in (handler, handler.function):
        queue.push(Task.create("u", 3, {"n": 1}))
        run = run_of(queue, Services(queue.name, queue.config, print, handler=given))
        assert run.definition.is_async
        assert execute(run).body == b'{"n":1}'


def test_a_handler_may_be_any_callable(queue: FairQueue) -> None:
    class Handler(dict[str, Any]):  # not hashable, and it inherits its signature
        def __call__(self, payload: Any) -> Any:
            return payload

    queue.push(Task.create("u", 3, [1]))
    assert execute(run_of(queue, Services(queue.name, queue.config, print, handler=Handler()))).body == b"[1]"


def test_a_bare_payload_waits_for_a_handler(queue: FairQueue, services: Services) -> None:
    queue.push(Task.create("u", 3, {"n": 1}, task_id="x"))
    assert run_next(queue, services) == "retried"
    assert "no HANDLER" in queue.history("x")[0].error


def test_a_name_is_reported_as_long_as_tasks_of_it_come(queue: FairQueue, caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    unknown = UnknownTasks(clock=lambda: clock[0])
    services = Services(queue.name, queue.config, lambda *report: None, unknown=unknown)
    for number in range(3):
        queue.push(Task.create("u", 3, {"args": [], "kwargs": {}}, name="shop.gone", task_id=f"t{number}"))
        assert run_next(queue, services) == "retried"
    assert unknown.names() == ["shop.gone"]
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "task 't0' of user 'u' can't run: no task named 'shop.gone' is registered" in warning.getMessage()
    clock[0] = 91
    assert unknown.names() == []
    clock[0] = 601
    assert unknown.should_warn("shop.gone") is True
    assert unknown.should_warn("shop.gone") is False


def test_the_number_of_unknown_names_is_limited() -> None:
    clock = [0.0]
    unknown = UnknownTasks(clock=lambda: clock[0])
    assert sum(unknown.should_warn(f"name-{number}") for number in range(300)) == MAX_UNKNOWN_NAMES
    assert len(unknown.names()) == MAX_UNKNOWN_NAMES
    clock[0] = 1200
    assert unknown.names() == []
    assert unknown.should_warn("another") is True
