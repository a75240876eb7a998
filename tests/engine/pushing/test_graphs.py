"""Tasks that are pushed together: cycles, refusals, runs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import (
    BacklogFullError,
    DependencyCycleError,
    TaskNotFoundError,
    TaskValidationError,
)
from django_fairque.engine.model.task import Task
from django_fairque.engine.pushing.batching import MAX_GRAPH_EDGES, MAX_GRAPH_TASKS
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.operations import ScriptCall
from tests.engine.conftest import NOW, MakeQueue, task
from tests.engine.graphs import die, node, states, take


class TestCycles:
    def test_a_task_that_depends_on_itself_is_refused(self, queue: FairQueue) -> None:
        with pytest.raises(DependencyCycleError, match="a → a"):
            queue.push(node("a", "a"), now=NOW)

    def test_a_cycle_within_a_graph_is_refused(self, queue: FairQueue, redis: Redis) -> None:
        with pytest.raises(DependencyCycleError, match="a → b → c → a") as caught:
            queue.push_batch([node("a", "b"), node("b", "c"), node("c", "a"), node("d", "a")], now=NOW)
        assert caught.value.cycle == ("a", "b", "c", "a")
        assert not redis.keys("*task:*") + redis.keys("*payload:*")

    def test_a_cycle_through_stored_tasks_is_refused(self, queue: FairQueue) -> None:
        queue.push(node("a"), now=NOW)
        queue.push_batch([node("b", "a"), node("c", "b")], now=NOW)
        die(queue, take(queue, "a")[0])
        before = {name: queue.get_task(name) for name in "abc"}
        with pytest.raises(DependencyCycleError, match="a → x → c → b → a"):
            queue.push_batch([node("x", "c"), node("a", "x")], now=NOW)
        assert {name: queue.get_task(name) for name in "abc"} == before
        assert queue.push_batch([node("x"), node("a", "x")], now=NOW)[
            1
        ].accepted  # the id "a" is used again, so this is no cycle
        assert states(queue, *"abcx") == "a:deferred b:deferred c:deferred x:queued"

    def test_a_cycle_through_a_known_task_is_refused(self, queue: FairQueue, redis: Redis) -> None:
        """A dependency that is the same work as its own dependent: that would wait for itself."""
        same: dict[str, Any] = {"unique_key": "k", "unique_for": 60}
        with pytest.raises(DependencyCycleError, match="a → a"):
            queue.push_graph([node("a", "b", **same), node("b", **same)], now=NOW)
        with pytest.raises(DependencyCycleError, match="c → a → c"):
            queue.push_graph([node("a", "c", **same), node("c", "b"), node("b", **same)], now=NOW)
        assert not redis.keys("*task:*") + redis.keys("*payload:*")
        queue.push(node("b", **same), now=NOW)
        assert queue.push(node("c", "b"), now=NOW).accepted
        results = queue.push_graph([node("a", **same), node("d", "a")], now=NOW)  # no cycle: d waits for b
        assert [result.task_id for result in results] == ["b", "d"]
        assert states(queue, *"bcd") == "b:queued c:deferred d:deferred"

    def test_a_chain_of_the_maximum_length_is_accepted(self, queue: FairQueue) -> None:
        names = [f"t{i}" for i in range(MAX_GRAPH_TASKS)]
        queue.push_graph([node(names[0]), *(node(b, a) for a, b in itertools.pairwise(names))], now=NOW)
        assert queue.get_stats().states["deferred"] == MAX_GRAPH_TASKS - 1


class TestRefusedValues:
    def test_a_graph_that_is_too_large_is_refused(self, queue: FairQueue) -> None:
        with pytest.raises(
            TaskValidationError, match=f"at most {MAX_GRAPH_TASKS:,} tasks, got {MAX_GRAPH_TASKS + 1:,}"
        ):
            queue.push_graph([task() for _ in range(MAX_GRAPH_TASKS + 1)])
        many = [node(f"t{i}") for i in range(1000)]
        ids = [parent.task_id for parent in many]
        with pytest.raises(TaskValidationError, match=f"at most {MAX_GRAPH_EDGES:,} dependencies"):
            queue.push_graph([*many, *(task(depends_on=ids) for _ in range(11))])

    @pytest.mark.parametrize("bad", ["an id", ["a", ""], [1], ["x" * 300]])
    def test_invalid_dependency_ids_are_refused(self, bad: Any) -> None:
        with pytest.raises(TaskValidationError):
            Task.create("u", 3, None, depends_on=bad)

    def test_an_unknown_policy_for_failed_dependencies_is_refused(self) -> None:
        with pytest.raises(TaskValidationError, match="one of wait, cancel, run, got 'skip'"):
            Task.create("u", 3, None, on_dependency_failure="skip")  # type: ignore[arg-type]

    def test_a_graph_with_one_id_twice_is_refused(self, queue: FairQueue) -> None:
        with pytest.raises(TaskValidationError, match="two tasks of one graph have the id 'a'"):
            queue.push_graph([node("a"), node("a")])

    def test_a_full_backlog_refuses_the_whole_graph(self, make_queue: MakeQueue, redis: Redis) -> None:
        queue = make_queue(max_backlog=2)
        with pytest.raises(BacklogFullError, match="none of the 3 tasks"):
            queue.push_graph([node("a"), node("b", "a"), node("c", "b")], now=NOW)
        assert not redis.keys("*task:*") + redis.keys("*payload:*")


def test_a_graph_pushed_again_after_a_lost_reply_is_stored_once(queue: FairQueue) -> None:
    from django_fairque.engine.pushing import push as pushing

    tasks = [task() for _ in range(3)]
    graph = [*tasks, task(depends_on=[task.task_id for task in tasks])]
    queue._shards.home.has_written_fingerprint = True  # else the first push writes it before its call
    steps = pushing.push_graph(queue._shards, graph, "r", NOW)
    request = next(steps)
    assert isinstance(request, ScriptCall)
    first, second = queue._transport.send(request), queue._transport.send(request)
    assert first[1:] == second[1:]
    assert queue.get_stats().totals["pushed"] == 4


class TestRuns:
    def test_two_runs_of_one_graph_are_separate(self, queue: FairQueue) -> None:
        for run in ("r1", "r2"):
            first = task()
            queue.push_graph([first, task(depends_on=[first.task_id])], run, now=NOW)
        assert queue.cancel_run("r1", now=NOW) == 2
        assert (queue.run("r1").state, queue.run("r2").state) == ("canceled", "running")
        assert queue.run("r1").tasks[0].run_id == "r1"

    def test_a_run_with_a_failed_task_can_be_continued(self, queue: FairQueue) -> None:
        queue.push_graph([node("a"), node("b", "a")], "r", now=NOW)
        entry = die(queue, take(queue, "a")[0])
        assert queue.run("r").state == "failed"
        queue.dlq.requeue(entry, now=NOW)
        assert queue.run("r").state == "running"

    def test_a_run_is_forgotten_with_its_last_task(self, queue: FairQueue, redis: Redis) -> None:
        queue.push_graph([node("a")], "r", now=NOW)
        queue.finish(take(queue, "a")[0], now=NOW)
        queue.sweep(now=NOW + 90_000)
        assert not redis.keys("*run:*")
        with pytest.raises(TaskNotFoundError, match="no run 'r'"):
            queue.run("r")


def test_the_graph_around_a_task_has_the_requested_number_of_steps(queue: FairQueue, redis: Redis) -> None:
    queue.push_graph([task(task_id=f"t{n}", depends_on=[f"t{n - 1}"] if n else []) for n in range(9)], "r", now=NOW)
    for layers, ids in ((1, "345"), (2, "23456"), (None, "012345678")):
        graph = queue.dependencies("t4", layers=layers).graph
        assert sorted(graph.nodes) == [f"t{number}" for number in ids]
        assert graph.is_whole is (layers is None)
    assert queue.dependencies("t4", layers=9).graph.is_whole
    with pytest.raises(TaskValidationError, match="layers"):
        queue.dependencies("t4", layers=0)


def test_the_graph_of_a_run_has_its_tasks_and_dependencies(queue: FairQueue) -> None:
    queue.push(task(task_id="outside"), now=NOW)
    queue.push_graph([task(task_id="a", depends_on=["outside"]), task(task_id="b", depends_on=["a"])], "r", now=NOW)
    graph = queue.run_graph("r")
    assert (sorted(graph.nodes), graph.edges, graph.is_whole) == (["a", "b"], (("a", "b"),), True)
    assert not queue.run_graph("r", 1).is_whole
    with pytest.raises(TaskNotFoundError, match="no run 'x'"):
        queue.run_graph("x")
