"""Code chooses the lane of a task: by an option, a block, or the task that enqueues it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from django_fairque import (
    Priority,
    Task,
    TaskUsageError,
    TaskValidationError,
    chain,
    current_task,
    get_queue,
    lane,
    task,
)
from django_fairque.tasks.execution import Services
from django_fairque.tasks.schedules import sync_schedules
from django_fairque.testing import assert_enqueued, capture_tasks
from tests.fixture_types import FairQueue, Server, Settings

from .helpers import awaited, noop, run_next

URGENT_AND_BULK = pytest.mark.parametrize("name", ["urgent", "bulk"])


def lanes(queue: FairQueue, *results: Any) -> list[str]:
    """Return the lanes of the tasks on the server."""
    return [queue.get_task(result.id).lane for result in results]


def enqueue_inside(enqueue: Callable[[], Any], **options: Any) -> Callable[[], list[Any]]:
    """Enqueue a task that calls ``enqueue`` when it runs. Return a function that returns the results."""
    results: list[Any] = []

    @task(name="outer", **options)
    def outer() -> None:
        found = enqueue()
        results.extend(found if isinstance(found, list) else [found])

    outer.enqueue()
    return lambda: results


class TestOptions:
    @URGENT_AND_BULK
    def test_a_declared_lane_is_that_of_the_task(self, queue: FairQueue, name: Any) -> None:
        assert lanes(queue, noop(lane=name).enqueue()) == [name]

    def test_a_task_without_a_lane_is_normal(self, queue: FairQueue) -> None:
        assert lanes(queue, noop().enqueue(), noop(lane=None).enqueue()) == ["normal", "normal"]

    def test_the_lane_of_a_call_replaces_the_declared_one(self, queue: FairQueue) -> None:
        work = noop(lane="bulk")
        results = [work.using(lane=name).enqueue() for name in ("urgent", "normal", None)]
        assert lanes(queue, *results) == ["urgent", "normal", "normal"]

    def test_each_call_of_enqueue_many_has_the_lane(self, queue: FairQueue) -> None:
        results = noop().using(lane="bulk").enqueue_many([((number,), {}) for number in range(3)])
        assert lanes(queue, *results) == ["bulk"] * 3

    def test_each_item_of_a_batch_has_the_lane(self, queue: FairQueue) -> None:
        @task(batch=10, lane="bulk", name="batch")
        def work(items: list[int]) -> None: ...

        assert lanes(queue, *work.enqueue_many([((number,), {}) for number in range(2)])) == ["bulk", "bulk"]

    @pytest.mark.parametrize("wrong", ["bluk", "URGENT", "", 7, ["bulk"]])
    def test_a_wrong_name_is_refused_with_the_list_of_lanes(self, wrong: Any) -> None:
        expected = r"lane must be one of urgent, normal, bulk, got "
        with pytest.raises(TaskUsageError, match=rf"@task on work: {expected}"):
            noop(lane=wrong)
        with pytest.raises(TaskUsageError, match=rf"work\.using\(\): {expected}"):
            noop().using(lane=wrong)
        with pytest.raises(TaskValidationError, match=rf"the {expected}"):
            lane(wrong)

    @URGENT_AND_BULK
    def test_a_lane_with_a_priority_is_refused_at_the_declaration(self, name: Any) -> None:
        expected = f"@task on work: a task of lane {name} has no priority, got HIGH: tasks of this lane start in order"
        with pytest.raises(TaskUsageError, match=expected):
            noop(lane=name, priority=Priority.HIGH)

    def test_a_lane_with_a_priority_is_refused_at_the_call(self) -> None:
        message = (
            r"using\(\): a task of lane bulk has no priority, got LOW: .*; leave out one of lane and priority, or give "
        )
        with pytest.raises(TaskUsageError, match=message):
            noop(priority=Priority.LOW).using(lane="bulk")
        with pytest.raises(TaskUsageError, match=message):
            noop(lane="bulk").using(priority=Priority.LOW)

    def test_a_call_may_take_the_declared_priority_back_for_a_lane(self, queue: FairQueue) -> None:
        work = noop(priority=Priority.LOW)
        assert lanes(queue, work.using(lane="bulk", priority=Priority.NORMAL).enqueue()) == ["bulk"]

    def test_lane_normal_may_have_a_priority(self, queue: FairQueue) -> None:
        found = queue.get_task(noop(lane="normal", priority=Priority.HIGH).enqueue().id)
        assert (found.lane, found.priority) == ("normal", Priority.HIGH)

    def test_an_argument_does_not_choose_the_lane(self, queue: FairQueue) -> None:
        @task(name="strict")
        def strict() -> None: ...

        with pytest.raises(
            TaskUsageError, match=r"lane is no argument of the task: write \.using\(lane=…\)\.enqueue\(…\)"
        ):
            strict.enqueue(lane="urgent")  # type: ignore[call-arg]
        result = noop().enqueue(lane="urgent", priority=6)
        assert lanes(queue, result) == ["normal"]


class TestBlock:
    def test_calls_in_a_block_have_its_lane(self, queue: FairQueue) -> None:
        work = noop()
        with lane("bulk"):
            inside = [work.enqueue(), *work.enqueue_many([((), {}), ((), {})])]
        assert lanes(queue, *inside, work.enqueue()) == ["bulk"] * 3 + ["normal"]

    def test_the_innermost_block_sets_the_lane(self, queue: FairQueue) -> None:
        work = noop()
        with lane("bulk"):
            with lane("urgent"):
                first = work.enqueue()
            with lane("normal"):
                second = work.enqueue()
            third = work.enqueue()
        assert lanes(queue, first, second, third) == ["urgent", "normal", "bulk"]

    def test_the_lane_of_the_call_or_the_declaration_counts_before_the_block(self, queue: FairQueue) -> None:
        declared, plain = noop("declared", lane="urgent"), noop()
        with lane("bulk"):
            results = [declared.enqueue(), plain.using(lane="normal").enqueue(), declared.using(lane=None).enqueue()]
        assert lanes(queue, *results) == ["urgent", "normal", "bulk"]

    def test_a_priority_does_not_count_in_a_bulk_block(self, queue: FairQueue) -> None:
        work = noop(priority=Priority.HIGH)
        with lane("bulk"):
            inside = queue.get_task(work.enqueue().id)
        with lane("normal"):
            normal = queue.get_task(work.enqueue().id)
        assert (inside.lane, inside.priority) == ("bulk", Priority.NORMAL)
        assert (normal.lane, normal.priority) == ("normal", Priority.HIGH)

    def test_blocks_of_concurrent_coroutines_are_separate(self, queue: FairQueue) -> None:
        work = noop()

        async def send(name: Any) -> Any:
            with lane(name):
                await asyncio.sleep(0)
                return [await work.aenqueue(), *await work.aenqueue_many([((), {})])]

        async def send_all() -> list[Any]:
            bulk, urgent = await asyncio.gather(send("bulk"), send("urgent"))
            return [*bulk, *urgent, await work.aenqueue()]

        assert lanes(queue, *awaited(send_all)) == ["bulk", "bulk", "urgent", "urgent", "normal"]

    def test_each_step_of_a_pipeline_has_the_lane_of_the_block(self, queue: FairQueue) -> None:
        work = noop()
        pipeline = chain(work.s(1), work.using(lane="normal").s(2), work.s(3).using(lane="urgent"))
        with lane("bulk"):
            run = pipeline.enqueue()
        assert lanes(queue, *run.results) == ["bulk", "normal", "urgent"]

    def test_a_schedule_that_is_added_in_a_block_does_not_keep_its_lane(self, queue: FairQueue) -> None:
        with lane("bulk"):
            queue.schedules.add("s", task=noop().s(), every=60)
        assert queue.get_task(queue.schedules.run_now("s")).lane == "normal"

    def test_a_block_can_be_entered_once(self) -> None:
        block = lane("bulk")
        with block, pytest.raises(RuntimeError, match="this block was entered before"), block:
            pass


class TestInheritance:
    def test_tasks_of_a_bulk_task_are_bulk_unless_they_have_a_lane(self, queue: FairQueue, services: Services) -> None:
        work = noop()

        def enqueue() -> list[Any]:
            with lane("normal"):
                in_block = work.enqueue()
            return [
                work.enqueue(),
                *work.enqueue_many([((), {})]),
                *(work.s() >> work.s()).enqueue().results,
                work.using(lane="normal").enqueue(),
                in_block,
            ]

        results = enqueue_inside(enqueue, lane="bulk")
        run_next(queue, services)
        assert lanes(queue, *results()) == ["bulk"] * 4 + ["normal", "normal"]

    def test_tasks_of_an_urgent_task_are_normal(self, queue: FairQueue, services: Services) -> None:
        work = noop()

        def enqueue() -> list[Any]:
            own_id = current_task().id
            return [work.enqueue(), work.using(depends_on=own_id).enqueue(), *(work.s() >> work.s()).enqueue().results]

        results = enqueue_inside(enqueue, lane="urgent")
        run_next(queue, services)
        assert lanes(queue, *results()) == ["normal"] * 4

    def test_dependents_of_an_urgent_task_are_normal(self, queue: FairQueue) -> None:
        first = noop(lane="urgent").enqueue()
        run = (noop().using(lane="urgent").s() >> noop().s()).enqueue()
        assert lanes(queue, noop().using(depends_on=first).enqueue(), *run.results) == ["normal", "urgent", "normal"]

    def test_a_block_around_a_task_that_runs_in_a_test_does_not_count_inside_it(self) -> None:
        with capture_tasks() as captured:
            enqueue_inside(noop().enqueue)
            with lane("urgent"):
                captured.run()
        assert [(task.name, task.lane) for task in captured] == [("outer", "normal"), ("work", "normal")]

    def test_a_batch_of_bulk_tasks_passes_the_lane_on(self, queue: FairQueue) -> None:
        work = noop()

        @task(batch=10, lane="bulk", name="batch")
        def batch(items: list[int]) -> None:
            work.enqueue()

        with capture_tasks() as captured:
            batch.enqueue_many([((1,), {}), ((2,), {})])
            captured.run()
        assert [task.lane for task in captured.of("work")] == ["bulk"]

    def test_a_batch_of_several_lanes_passes_no_lane_on(self) -> None:
        work, sizes = noop(), []

        @task(batch=10, name="batch")
        def batch(items: list[int]) -> None:
            sizes.append(len(items))
            work.enqueue()

        with capture_tasks() as captured:
            batch.using(lane="bulk").enqueue(1)
            batch.enqueue(2)
            captured.run()
        assert (sizes, [task.lane for task in captured.of("work")]) == ([2], ["normal"])

    def test_the_running_task_has_its_lane(self, queue: FairQueue, services: Services) -> None:
        seen: list[str] = []

        @task(name="work", lane="urgent")
        def work() -> None:
            seen.append(current_task().lane)

        work.enqueue()
        run_next(queue, services)
        assert [*seen, current_task().lane] == ["urgent", "normal"]


class TestSchedules:
    @pytest.fixture
    def declare(self, server: Server, settings: Settings, queue: FairQueue) -> Callable[..., FairQueue]:
        def declare(**schedule: Any) -> FairQueue:
            declared = {"s": {"TASK": "shop.report", "EVERY": 60, **schedule}}
            settings.FAIRQUE = {"REDIS": {"URL": server.url}, "SCHEDULES": declared}
            sync_schedules()
            return get_queue()

        return declare

    def test_a_schedule_in_settings_has_a_lane(self, declare: Callable[..., FairQueue]) -> None:
        noop("shop.report")
        queue = declare(LANE="bulk")
        assert queue.get_task(queue.schedules.run_now("s")).lane == "bulk"

    def test_the_lane_of_a_schedule_replaces_that_of_its_task(self, declare: Callable[..., FairQueue]) -> None:
        noop("shop.report", lane="bulk")
        given: list[dict[str, str]] = [{}, {"LANE": "normal"}, {"LANE": "urgent"}]
        queues = (declare(**options) for options in given)
        assert [queue.get_task(queue.schedules.run_now("s")).lane for queue in queues] == ["bulk", "normal", "urgent"]

    def test_the_step_of_a_schedule_has_a_lane(self, queue: FairQueue) -> None:
        queue.schedules.add("s", task=noop().using(lane="urgent").s(), every=60)
        assert queue.get_task(queue.schedules.run_now("s")).lane == "urgent"

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"LANE": "bluk"}, '"urgent", "normal" or "bulk"; got \'bluk\''),
            ({"LANE": "bulk", "PRIORITY": "HIGH"}, '["LANE"]: a task of lane bulk has no priority, got HIGH'),
        ],
    )
    def test_a_wrong_lane_of_a_schedule_is_explained(
        self, declare: Callable[..., FairQueue], options: dict[str, Any], expected: str
    ) -> None:
        noop("shop.report")
        with pytest.raises(Exception, match="SCHEDULES") as caught:
            declare(**options)
        assert expected in str(caught.value)

    def test_a_lane_that_contradicts_the_priority_of_the_task_is_explained(
        self, declare: Callable[..., FairQueue]
    ) -> None:
        noop("shop.report", priority=Priority.HIGH)
        with pytest.raises(TaskUsageError, match=r"s: .*a task of lane bulk has no priority, got HIGH"):
            declare(LANE="bulk")


class TestPrioritiesThatStandForLanes:
    @pytest.fixture
    def queue(self, server: Server, redis: Any, settings: Settings) -> FairQueue:
        lanes = {"URGENT_PRIORITY": "CRITICAL", "BULK_PRIORITY": "VERY_LOW"}
        settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"LANES": lanes}}
        return get_queue()

    def test_tasks_of_the_configured_priorities_go_to_their_lanes(self, queue: FairQueue) -> None:
        results = [noop().using(priority=priority).enqueue() for priority in Priority]
        assert lanes(queue, *results) == ["bulk", "normal", "normal", "normal", "normal", "urgent"]

    def test_a_task_that_was_moved_to_a_lane_has_no_priority(self, queue: FairQueue) -> None:
        found = queue.get_task(noop(priority=Priority.CRITICAL).enqueue().id)
        assert (found.lane, found.priority) == ("urgent", Priority.NORMAL)

    @pytest.mark.parametrize("count", [1, 700])
    def test_all_ways_of_pushing_use_the_lane_of_the_priority(self, queue: FairQueue, count: int) -> None:
        tasks = [Task.create("u", Priority.CRITICAL, number) for number in range(count)]
        queue.push_batch(tasks)
        queue.push(single := Task.create("u", Priority.CRITICAL, {}))
        queue.push_graph([first := Task.create("u", 6, {}), Task.create("u", 1, {}, depends_on=[first.task_id])])
        queue.schedules.add("s", task=Task.create("u", Priority.CRITICAL, {}), every=60)
        found = [tasks[0], tasks[-1], single, first, queue.get_task(queue.schedules.run_now("s"))]
        assert [queue.get_task(task.task_id).lane for task in found] == ["urgent"] * 5

    def test_a_priority_that_selects_a_lane_overrides_a_block(self, queue: FairQueue) -> None:
        with lane("bulk"):
            results = [noop(priority=priority).enqueue() for priority in (Priority.CRITICAL, Priority.HIGH)]
        with lane("urgent"):
            results.append(noop(priority=Priority.VERY_LOW).enqueue())
        assert lanes(queue, *results) == ["urgent", "bulk", "bulk"]

    def test_another_lane_of_the_task_counts_before_its_priority(self, queue: FairQueue) -> None:
        assert lanes(queue, noop(lane="bulk").enqueue(), noop(lane="urgent").enqueue()) == ["bulk", "urgent"]

    def test_a_task_that_waits_keeps_its_priority_when_the_setting_changes(
        self, server: Server, settings: Settings, queue: FairQueue
    ) -> None:
        urgent = noop(priority=Priority.CRITICAL).enqueue()
        settings.FAIRQUE = {"REDIS": {"URL": server.url}}
        critical = noop(priority=Priority.CRITICAL).enqueue()
        assert lanes(get_queue(), urgent, critical) == ["urgent", "normal"]


class TestCaptures:
    def test_a_captured_task_has_its_lane(self) -> None:
        with capture_tasks() as captured:
            noop(lane="urgent").enqueue("acme")
            with lane("bulk"):
                noop().enqueue()
            assert [task.lane for task in captured] == ["urgent", "bulk"]
            assert repr(captured[0]) == "<work('acme') for 'default', urgent, queue default>"
            assert len(assert_enqueued("work", lane="bulk", count=1)) == 1
            with pytest.raises(AssertionError, match="with lane='normal', found 0"):
                assert_enqueued("work", lane="normal")

    def test_urgent_tasks_come_before_critical_ones_and_bulk_tasks_last(self) -> None:
        with capture_tasks():
            bulk, critical, urgent = (
                noop("a", lane="bulk").enqueue(),
                noop("b", priority=Priority.CRITICAL).enqueue(),
                noop("c", lane="urgent").enqueue(),
            )
            assert [result.position for result in (urgent, critical, bulk)] == [0, 1, 2]
