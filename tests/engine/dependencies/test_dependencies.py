"""Tasks that wait for others: what each end of a dependency means, cycles, slices, races, runs."""

from __future__ import annotations

import itertools
import random

import pytest
from redis import Redis

from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, pop, sweep_all, task
from tests.engine.graphs import die, node, states, take

POLICIES = ("wait", "cancel", "run")


class TestTheExamplesOfTheDesign:
    """D waits for A, B and C; E for A and B; F for C."""

    @pytest.fixture
    def leases(self, queue: FairQueue) -> dict[str, Lease]:
        queue.push_batch(
            [node(n) for n in "ABC"] + [node("D", "A", "B", "C"), node("E", "A", "B"), node("F", "C")], now=NOW
        )
        assert states(queue, *"ABCDEF") == "A:queued B:queued C:queued D:deferred E:deferred F:deferred"
        return {lease.task_id: lease for lease in take(queue, "A", "B", "C")}

    def test_dependents_are_released_one_by_one_as_their_dependencies_finish(
        self, queue: FairQueue, leases: dict[str, Lease], redis: Redis
    ) -> None:
        keys = queue._shards.home.keys
        queue.finish(leases["A"], now=NOW)
        assert states(queue, "D", "E", "F") == "D:deferred E:deferred F:deferred"
        assert set(redis.smembers(keys.blocked("E"))) == {b"B"}
        queue.finish(leases["C"], now=NOW)
        assert states(queue, "D", "E", "F") == "D:deferred E:deferred F:queued"
        queue.finish(leases["B"], now=NOW)
        assert states(queue, "D", "E", "F") == "D:queued E:queued F:queued"
        assert not list(redis.scan_iter("*deps:*"))
        for lease in take(queue, "F", "D", "E"):
            queue.finish(lease, now=NOW)

    def test_dependents_are_released_after_any_order_of_dependencies(self, redis: Redis, queue: FairQueue) -> None:
        for order in itertools.permutations("ABC"):
            redis.flushall()
            queue.push_batch([node("D", *"ABC"), node("E", *"AB"), node("F", "C"), *(node(n) for n in "ABC")], now=NOW)
            leases = {lease.task_id: lease for lease in take(queue, "A", "B", "C")}
            done: set[str] = set()
            for name in order:
                queue.finish(leases[name], now=NOW)
                done.add(name)
                for waiter, needs in (("D", "ABC"), ("E", "AB"), ("F", "C")):
                    expected = TaskState.QUEUED if done >= set(needs) else TaskState.DEFERRED
                    assert queue.get_task(waiter).state is expected
                assert queue.check_invariants() == []

    def test_a_graph_that_fans_out_and_in_completes(self, queue: FairQueue) -> None:
        middle = [f"m{i:03}" for i in range(300)]
        queue.push_graph([node("end", *middle), *(node(m, "start") for m in middle), node("start")], "run 1", now=NOW)
        (start,) = take(queue, "start")
        queue.finish(start, now=NOW)
        sweep_all(queue)
        leases = queue.pop_batch(500, "w", lease=1e6, now=NOW)
        assert sorted(lease.task_id for lease in leases) == middle
        for lease in leases[:-1]:
            queue.finish(lease, now=NOW)
        assert queue.run("run 1").states == {TaskState.FINISHED: 300, TaskState.STARTED: 1, TaskState.DEFERRED: 1}
        queue.finish(leases[-1], now=NOW)
        (end,) = take(queue, "end")
        queue.finish(end, now=NOW)
        assert queue.run("run 1").state == "finished"


class TestDependenciesInAPush:
    def test_a_finished_dependency_does_not_block(self, queue: FairQueue) -> None:
        queue.push(node("a"), now=NOW)
        queue.finish(take(queue, "a")[0], {"n": 1}, now=NOW)
        queue.push(node("b", "a"), now=NOW)
        assert states(queue, "b") == "b:queued"
        assert queue.parent_results("b") == {"a": {"n": 1}}

    @pytest.mark.parametrize("how", ["failed", "canceled"])
    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_failed_or_canceled_dependency_follows_the_policy(self, queue: FairQueue, how: str, policy: str) -> None:
        queue.push(node("a"), now=NOW)
        if how == "failed":
            die(queue, take(queue, "a")[0])
        else:
            queue.cancel("a", now=NOW)
        queue.push_batch([node("b", "a", on_dependency_failure=policy), node("c", "b")], now=NOW)
        queue.sweep(now=NOW)
        expected = {
            ("failed", "wait"): "b:deferred c:deferred",
            ("failed", "run"): "b:queued c:deferred",
            ("canceled", "run"): "b:queued c:deferred",
        }
        assert states(queue, "b", "c") == expected.get((how, policy), "b:canceled c:canceled")

    def test_a_missing_dependency_is_refused(self, queue: FairQueue, redis: Redis) -> None:
        with pytest.raises(TaskNotFoundError, match="task 'c' depends on 'nowhere'"):
            queue.push_batch([node("b"), node("c", "b", "nowhere")], now=NOW)
        assert not redis.keys("*task:*") + redis.keys("*payload:*")
        assert not redis.keys("*deps:*")

    def test_dependencies_may_be_pushed_in_the_same_call_in_any_order(self, queue: FairQueue) -> None:
        queue.push_batch([node("c", "b"), node("b", "a"), node("a")], now=NOW)
        assert states(queue, *"abc") == "a:queued b:deferred c:deferred"

    def test_a_dependent_of_a_duplicate_waits_for_the_first_task(self, queue: FairQueue) -> None:
        queue.push(task("u", task_id="first", unique_key="k", unique_for=60), now=NOW)
        again = task("u", task_id="second", unique_key="k", unique_for=60)
        queue.push_batch([again, node("b", "second")], now=NOW)
        assert queue.dependencies("b").blocked == ("first",)
        queue.finish(take(queue, "first")[0], now=NOW)
        assert states(queue, "b") == "b:queued"

    def test_dependents_pushed_while_a_task_finishes_run_exactly_once(self, queue: FairQueue) -> None:
        """Scripts run one after the other: a push is before the finish or after it, and both ways the task runs."""
        chance, started = random.Random(5), []
        for round_ in range(60):
            parent = f"p{round_}"
            queue.push(node(parent), now=NOW)
            lease = pop(queue)
            finish_at = chance.randrange(4)
            for i in range(4):
                if i == finish_at:
                    queue.finish(lease, now=NOW)
                if i < 3:
                    queue.push(node(f"{parent}.{i}", parent), now=NOW)
            started += [lease.task_id for lease in queue.pop_batch(100, "w", now=NOW)]
        assert sorted(started) == sorted(f"p{n}.{i}" for n in range(60) for i in range(3))


class TestDeadLetterAsADependency:
    @pytest.fixture
    def entry(self, queue: FairQueue) -> str:
        queue.push_batch(
            [node("a"), *(node(policy, "a", on_dependency_failure=policy) for policy in POLICIES)], now=NOW
        )
        entry = die(queue, take(queue, "a")[0])
        assert states(queue, *POLICIES) == "wait:deferred cancel:canceled run:queued"
        assert queue.history("cancel")[-1].error == "dependency a has failed"
        return entry

    def test_a_dependent_waits_for_the_requeued_run_of_a_dead_letter(self, queue: FairQueue, entry: str) -> None:
        queue.dlq.requeue(entry, now=NOW)
        assert states(queue, "wait") == "wait:deferred"
        leases = {lease.task_id: lease for lease in queue.pop_batch(9, "w", now=NOW)}
        queue.finish(leases["a"], now=NOW)
        assert states(queue, "wait") == "wait:queued"

    def test_discarding_a_dead_letter_cancels_its_waiting_dependents(self, queue: FairQueue, entry: str) -> None:
        queue.dlq.discard(entry, now=NOW)
        assert states(queue, *POLICIES) == "wait:canceled cancel:canceled run:queued"

    @pytest.mark.usefixtures("entry")
    def test_dependents_are_canceled_when_retention_removes_a_dead_letter(self, queue: FairQueue) -> None:
        later = NOW + 8 * 86_400
        sweep_all(queue, later)
        queue.sweep(now=later)
        assert queue.get_task("wait").state is TaskState.CANCELED
        sweep_all(queue, later + 2 * 86_400)
        assert queue.tasks().items == [queue.get_task("run")]

    @pytest.mark.usefixtures("entry")
    def test_dependents_are_canceled_when_a_cleanup_removes_a_dead_letter(self, queue: FairQueue) -> None:
        assert queue.dlq.cleanup(10, now=NOW + 100) == 1
        queue.sweep(now=NOW + 100)
        assert states(queue, "a", "wait") == "a:canceled wait:canceled"


def test_canceling_a_task_removes_links_to_and_from_its_neighbors(queue: FairQueue, redis: Redis) -> None:
    queue.push_batch([node("a"), node("x"), node("b", "a", "x"), node("c", "b")], now=NOW)
    queue.cancel("b", now=NOW)
    assert states(queue, "a", "b", "c") == "a:queued b:canceled c:canceled"
    assert not redis.keys("*deps:*")


def test_a_cascade_of_any_length_is_canceled_in_slices(make_queue: MakeQueue) -> None:
    queue = make_queue(sweep_batch_size=10)
    names = [f"t{i:03}" for i in range(100)]
    queue.push_graph([node(names[0]), *(node(b, a) for a, b in itertools.pairwise(names))], now=NOW)
    queue.cancel(names[0], now=NOW)
    assert queue.get_task(names[10]).state is TaskState.CANCELED
    assert queue.get_task(names[11]).state is TaskState.DEFERRED
    assert queue.check_invariants() == []
    sweep_all(queue)
    assert {task.state for task in queue.tasks(limit=200).items} == {TaskState.CANCELED}


def test_thousands_of_dependents_are_released_in_slices(make_queue: MakeQueue, redis: Redis) -> None:
    queue = make_queue(sweep_batch_size=50)
    queue.push(node("a"), now=NOW)
    for first in range(0, 3000, 1000):
        queue.push_batch([task(f"u{i % 7}", depends_on=["a"]) for i in range(first, first + 1000)], now=NOW)
    (lease,) = take(queue, "a")
    redis.config_resetstat()
    queue.finish(lease, now=NOW)
    stats = redis.info("commandstats")
    assert sum(stat["calls"] for name, stat in stats.items() if "fcall" not in name) < 50 * 14
    assert queue.get_stats().states["queued"] == 50
    slices = 1
    while queue.sweep(now=NOW).more:
        slices += 1
    assert slices >= 3000 // 50 - 1
    assert queue.get_stats().states["queued"] == 3000


def test_a_released_dependent_may_be_due_later_or_already_expired(queue: FairQueue) -> None:
    queue.push_batch(
        [node("a"), node("later", "a", execute_after=NOW + 50), node("over", "a", expires_at=NOW + 5)], now=NOW
    )
    (lease,) = take(queue, "a")
    assert queue.sweep(now=NOW + 6).expired == 1
    queue.finish(lease, now=NOW + 6)
    assert states(queue, "later", "over") == "later:scheduled over:failed"
    assert queue.pop("w", now=NOW + 51) is not None


def test_a_retry_of_a_dependency_does_not_affect_its_dependents(queue: FairQueue) -> None:
    queue.push_batch([node("a"), node("b", "a", on_dependency_failure="cancel")], now=NOW)
    queue.fail(take(queue, "a")[0], "again", delay=0, now=NOW)
    assert states(queue, "b") == "b:deferred"


def test_an_id_that_is_canceled_twice_leaves_no_links(queue: FairQueue) -> None:
    queue.push_batch([node("a"), node("b")], now=NOW)
    queue.cancel("a", now=NOW)
    queue.cancel("b", now=NOW)
    queue.push(node("b", "a"), now=NOW)
    assert states(queue, "b") == "b:canceled"


def test_the_view_of_a_task_has_its_parents_its_dependents_and_the_graph(queue: FairQueue) -> None:
    queue.push_batch([node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c")], now=NOW)
    queue.finish(take(queue, "a")[0], now=NOW)
    view = queue.dependencies("b")
    assert (view.waiting, view.blocked, view.parents) == (("d",), (), ("a",))
    assert set(view.graph.edges) == {("a", "b"), ("b", "d"), ("c", "d"), ("a", "c")}
    assert view.graph.nodes["a"].state is TaskState.FINISHED
    assert not queue.dependencies("b", nodes=2).graph.is_whole
    with pytest.raises(TaskNotFoundError):
        queue.dependencies("nobody")


def test_purging_a_user_cancels_its_deferred_tasks(queue: FairQueue) -> None:
    queue.push_batch([node("a"), node("b", "a", user="v"), node("c", "b")], now=NOW)
    assert queue.user("v").purge(now=NOW) == 1
    assert states(queue, *"abc") == "a:queued b:canceled c:canceled"


def test_blockers_of_several_tasks_are_read_together(queue: FairQueue, redis: Redis) -> None:
    queue.push_graph([task(task_id="a"), task(task_id="b"), task(task_id="c", depends_on=["a", "b"])], now=NOW)
    found = queue.blockers(["c", "a"])
    assert [(node.task_id, node.state) for node in found["c"].nodes] == [
        ("a", TaskState.QUEUED),
        ("b", TaskState.QUEUED),
    ]
    assert (found["c"].count, found["c"].orphans, found["a"].count, queue.blockers([])) == (2, (), 0, {})
    assert len(queue.blockers(["c"], 1)["c"].nodes) == 1
    redis.rename("fq:{default:0}:task:a", "elsewhere")
    assert queue.blockers(["c"])["c"].orphans == ("a",)
    redis.rename("elsewhere", "fq:{default:0}:task:a")


def test_a_reused_task_id_leaves_its_earlier_run(queue: FairQueue) -> None:
    for run in ("r1", "r2", "r2"):
        queue.push_graph([task(task_id="x")], run, now=NOW)
        queue.finish(pop(queue), now=NOW)
        assert len(queue.run(run).tasks) == 1
    assert queue.check_invariants() == []
    queue.push(task(task_id="x"), now=NOW)
