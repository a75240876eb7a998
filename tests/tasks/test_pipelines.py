"""Pipelines: calls put together, sent as a whole, run in order, with values passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_fairque import Step, chain, current_task, group, task
from django_fairque.engine.model.errors import DependencyCycleError, TaskNotFoundError
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks.definition import TaskDefinition
from django_fairque.tasks.errors import TaskUsageError, TaskWaitTimeoutError
from django_fairque.tasks.execution import Run, Services, execute, prepare
from django_fairque.tasks.pipelines import Pipeline
from django_fairque.tasks.results import TaskResult

Steps = dict[str, Step]


@pytest.fixture
def steps() -> Steps:
    @task
    def work(name: str) -> str:
        context = current_task()
        context.xcom.push(name, sorted(context.parent_results().values()))
        return name

    return {name: work.s(name) for name in "abcde"}


@pytest.fixture
def run_all(queue: FairQueue, services: Services) -> Callable[[], list[Any]]:
    """Run everything that becomes ready; the results in the order of their run."""

    def run() -> list[Any]:
        done = []
        while lease := queue.pop("w"):
            run = prepare(lease, services)
            assert isinstance(run, Run)
            outcome = execute(run)
            queue.settle([outcome])
            done.append(queue.get_task(lease.task_id).result)
        return done

    return run


def edges(pipeline: Pipeline) -> set[str]:
    return {f"{before.args[0]}{after.args[0]}" for before, after in pipeline.edges}


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda a, b, c, d, e: a >> b, "ab"),
        (lambda a, b, c, d, e: b << a, "ab"),
        (lambda a, b, c, d, e: a >> (b | c) >> d, "ab ac bd cd"),
        (lambda a, b, c, d, e: d << (b | c) << a, "ab ac bd cd"),
        (lambda a, b, c, d, e: a >> ((b >> c) | d) >> e, "ab bc ad ce de"),
        (lambda a, b, c, d, e: (a | b) >> (c | d), "ac ad bc bd"),
        (lambda a, b, c, d, e: (a >> c) | (b >> c), "ac bc"),
        (lambda a, b, c, d, e: chain(a, group([b, c]), d), "ab ac bd cd"),
    ],
)
def test_operators_order_the_steps_of_a_pipeline(steps: Steps, build: Callable[..., Pipeline], expected: str) -> None:
    assert edges(build(*steps.values())) == set(expected.split())


def bare_tasks(names: str) -> list[TaskDefinition[[], str]]:
    def declared(name: str) -> TaskDefinition[[], str]:
        @task(name=name)
        def work() -> str:
            return name

        return work

    return [declared(name) for name in names]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda a, b, c, d: a >> b, "ab"),
        (lambda a, b, c, d: b << a, "ab"),
        (lambda a, b, c, d: a | b, ""),
        (lambda a, b, c, d: a.s() >> b, "ab"),
        (lambda a, b, c, d: a >> b.s(), "ab"),
        (lambda a, b, c, d: b.s() << a, "ab"),
        (lambda a, b, c, d: b << a.s(), "ab"),
        (lambda a, b, c, d: (a.s() | b) >> c, "ac bc"),
        (lambda a, b, c, d: a >> (b | c) >> d, "ab ac bd cd"),
        (lambda a, b, c, d: d << (b | c.s()) << a, "ab ac bd cd"),
        (lambda a, b, c, d: chain(a, group([b, c]), d), "ab ac bd cd"),
        (lambda a, b, c, d: a >> a.s() >> a.using(priority=1), "aa"),
    ],
)
def test_a_task_stands_for_its_call_without_arguments(build: Callable[..., Pipeline], expected: str) -> None:
    made = build(*bare_tasks("abcd"))
    assert {f"{before.name}{after.name}" for before, after in made.edges} == set(expected.split())


def test_tasks_without_calls_run_in_their_order(run_all: Callable[[], list[Any]]) -> None:
    a, b, c, d = bare_tasks("abcd")
    pipeline = a >> (b | c) >> d
    for _ in range(2):
        run = pipeline.enqueue()
        first, *middle, last = run_all()
        assert (first, sorted(middle), last) == ("a", ["b", "c"], "d")
        assert run.state == "finished"


def test_a_run_executes_its_steps_in_order_and_finishes(
    steps: Steps, queue: FairQueue, run_all: Callable[[], list[Any]]
) -> None:
    a, b, c, d, _ = steps.values()
    run = (a >> (b | c) >> d).enqueue()
    assert (run.state, len(run), run[d].state) == ("running", 4, TaskState.DEFERRED)
    assert run_all() == ["a", "b", "c", "d"]
    assert (run.state, run.wait(0)) == ("finished", "finished")
    assert queue.xcom(run.id).items() == {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
    assert run[d].result() == "d"


def test_one_pipeline_may_run_many_times_at_once(steps: Steps, run_all: Callable[[], list[Any]]) -> None:
    pipeline = steps["a"] >> steps["b"]
    first, second, third = (pipeline.enqueue() for _ in range(3))
    assert second.cancel() == 2
    assert run_all() == ["a", "a", "b", "b"]
    assert [run.state for run in (first, second, third)] == ["finished", "canceled", "finished"]


def test_a_run_that_fails_waits_for_its_dead_letter(queue: FairQueue, run_all: Callable[[], list[Any]]) -> None:
    broken = True

    @task(max_retries=0)
    def first() -> int:
        if broken:
            raise ValueError("not yet")
        return 1

    @task
    def then() -> Any:
        return current_task().parent_result()

    run = (first.s() >> then.s()).enqueue()
    run_all()
    assert run.state == "failed"
    broken = False
    assert queue.dlq.requeue_all() == 1
    run_all()
    assert (run.state, run.results[1].result()) == ("finished", 1)


async def test_coroutines_wait_for_a_run(steps: Steps, run_all: Callable[[], list[Any]]) -> None:
    from django_fairque.conf import aclose_queues

    run = await (steps["a"] >> steps["b"]).aenqueue()
    with pytest.raises(TaskWaitTimeoutError, match="2 tasks had not ended"):
        await run.await_(0)
    run_all()
    assert await run.await_(1) == await run.astate() == "finished"
    assert (await run.aview()).states == {TaskState.FINISHED: 2}
    assert await run.acancel() == 0
    await aclose_queues()


@pytest.mark.django_db(transaction=True)
def test_a_pipeline_is_sent_when_the_transaction_commits(steps: Steps, run_all: Callable[[], list[Any]]) -> None:
    pipeline = steps["a"] >> steps["b"]
    with transaction.atomic():
        run, other = pipeline.enqueue(), pipeline.enqueue()
        with pytest.raises(TaskNotFoundError):
            run.view()
    assert run.state == other.state == "running"
    assert run_all() == ["a", "a", "b", "b"]


def test_a_single_task_may_depend_on_others(steps: Steps, run_all: Callable[[], list[Any]]) -> None:
    @task(on_dependency_failure="cancel")
    def last() -> int:
        return len(current_task().parent_results())

    results = [steps["a"].enqueue().results[0], steps["b"].enqueue().results[0]]
    sent = last.using(depends_on=results).enqueue()
    assert sent.state is TaskState.DEFERRED
    assert run_all() == ["a", "b", 2]
    assert last.using(depends_on=[sent.id]).enqueue().state is TaskState.QUEUED


@pytest.mark.parametrize("of", [lambda result: result, lambda result: result.id])
def test_a_single_dependency_needs_no_sequence(queue: FairQueue, steps: Steps, of: Callable[[TaskResult], Any]) -> None:
    @task
    def last() -> None: ...

    first = steps["a"].enqueue().results[0]
    sent = last.using(depends_on=of(first)).enqueue()
    run = last.s().using(depends_on=of(sent)).enqueue()
    assert queue.get_task(sent.id).depends_on == (first.id,)
    assert queue.get_task(run.results[0].id).depends_on == (sent.id,)


class TestMistakes:
    def test_a_cycle_of_steps_is_refused(self, steps: Steps) -> None:
        a, b, *_ = steps.values()
        with pytest.raises(DependencyCycleError, match="→"):
            ((a >> b) | (b >> a)).enqueue()

    def test_steps_of_two_queues_are_refused(self, steps: Steps) -> None:
        with pytest.raises(TaskUsageError, match="one queue, these steps name default, mail"):
            (steps["a"] >> steps["b"].using(queue="mail")).enqueue()

    def test_arguments_that_do_not_fit_are_refused_in_a_step(self) -> None:
        @task
        def work(name: str) -> None: ...

        with pytest.raises(TaskUsageError, match="missing a required argument"):
            work.s()  # type: ignore[call-arg]

    def test_a_pipeline_of_values_that_are_no_tasks_is_refused(self, steps: Steps) -> None:
        with pytest.raises(TypeError):
            steps["a"] >> "b"  # type: ignore[operator]
        with pytest.raises(TaskUsageError, match=r"group\(\) takes steps"):
            group(["b"])  # type: ignore[list-item]
        with pytest.raises(TaskUsageError, match="at least one"):
            chain()

    @pytest.mark.parametrize(
        "build",
        [
            lambda step, bare: step >> bare,
            lambda step, bare: step << bare,
            lambda step, bare: step | bare,
            lambda step, bare: bare >> step,
            lambda step, bare: bare << step,
            lambda step, bare: bare | step,
            lambda step, bare: (step | step) >> bare,
            lambda step, bare: bare >> (step | step),
            chain,
            lambda step, bare: group([step, bare]),
        ],
    )
    @pytest.mark.parametrize("batch", [False, True])
    def test_a_bare_task_with_parameters_is_refused(
        self, steps: Steps, build: Callable[..., Pipeline], batch: bool
    ) -> None:
        if batch:

            @task(batch=5)
            def bare(items: list[int]) -> None: ...
        else:

            @task
            def bare(item: int) -> None: ...

        with pytest.raises(TaskUsageError, match=r"only if it needs no arguments; write \.s\(…\): .*bare\.enqueue\(\)"):
            build(steps["a"], bare)

    @pytest.mark.parametrize(
        "build",
        [
            lambda a, b, c: a >> a,
            lambda a, b, c: a << a,
            lambda a, b, c: a | a,
            lambda a, b, c: (a >> c) | (b >> c),
            lambda a, b, c: a >> (b | c) >> a,
            lambda a, b, c: chain(a, b, a),
            lambda a, b, c: group([a, a]),
        ],
    )
    def test_a_bare_task_that_is_used_twice_in_a_pipeline_is_refused(self, build: Callable[..., Pipeline]) -> None:
        """A bare task that is used twice could mean one task of the graph, or two."""
        with pytest.raises(TaskUsageError, match=r"more than once: write \w\.s\(\) for each task that is meant"):
            build(*bare_tasks("abc"))

    def test_a_group_of_loose_steps_is_refused(self, steps: Steps) -> None:
        words = r"(?m)group\(\) takes one list, such as group\(\[a\.s\(…\), b\.s\(…\)\]\), got "
        with pytest.raises(TaskUsageError, match=words + r"<step .*\('a'\)>, <step .*\('b'\)>$"):
            group(steps["a"], steps["b"])  # type: ignore[arg-type]
        with pytest.raises(TaskUsageError, match=words + r"\[<step .*\('a'\)>\], \[<step .*\('b'\)>\]$"):
            group([steps["a"]], [steps["b"]])  # type: ignore[arg-type]
        with pytest.raises(TaskUsageError, match=words + r"<step .*\('a'\)>$"):
            group(steps["a"])  # type: ignore[arg-type]

    @pytest.mark.parametrize("bad", [{"depends_on": b"an id"}, {"depends_on": [7]}, {"on_dependency_failure": "maybe"}])
    def test_invalid_options_of_a_step_are_refused(self, steps: Steps, bad: dict[str, Any]) -> None:
        with pytest.raises(TaskUsageError):
            steps["a"].using(**bad)

    @pytest.mark.usefixtures("queue")
    def test_a_run_can_not_be_a_dependency(self, steps: Steps) -> None:
        run = (steps["a"] >> steps["b"]).enqueue()
        for given in (run, [run]):
            with pytest.raises(TaskUsageError, match=r"depends_on names tasks, got the run .*: run\[step\]"):
                steps["c"].using(depends_on=given)

    def test_a_parent_result_needs_exactly_one_parent(self, run_all: Callable[[], list[Any]], queue: FairQueue) -> None:
        @task(max_retries=0)
        def alone() -> None:
            current_task().parent_result()

        alone.enqueue()
        run_all()
        assert "0 parents" in queue.dlq.list().items[0].reason
