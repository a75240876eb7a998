"""Pipelines: calls combined with ``>>``, ``<<`` and ``|``, sent as one graph under one run id.

A `Step` is one call that has not been sent. Combined steps are a `Pipeline`, which can be combined in the same way.
Steps and pipelines are immutable. If a step is used in several places of a pipeline, it is only one task. Each
`enqueue` starts a new run with new tasks, so several runs of one pipeline may exist at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn

from django_fairque.engine.model.errors import short
from django_fairque.engine.model.ids import new_task_id
from django_fairque.engine.pushing.batching import check_acyclic, check_graph
from django_fairque.tasks import sending

from .context import as_user, call_with_user, current_lane
from .errors import NamesReplacements, TaskUsageError, TaskWaitTimeoutError
from .options import SENDABLE, SendOptions, TaskOptions, change_options
from .results import Handle, TaskResult, acancel_run, cancel_run

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from django_fairque.engine.inspection.task_lookup import RunView
    from django_fairque.engine.model.task import Task


RUN_POLL_SECONDS = 0.05
"""Seconds between two requests of the run's state in `PipelineResult.wait`."""


class Composable(NamesReplacements):
    """An operand of ``>>``, ``<<`` and ``|``: a pipeline, a step, or a task that needs no arguments."""

    def as_step(self) -> Pipeline:
        """Return this operand as a pipeline."""
        raise NotImplementedError

    def __rshift__(self, after: Composable) -> Pipeline:
        """``a >> b``: every first step of b runs when all last steps of a have finished."""
        if not isinstance(after, Composable):
            return NotImplemented
        first, then = self.as_step(), after.as_step()
        between = [(tail, head) for tail in first.tails for head in then.heads]
        return Pipeline([*first.steps, *then.steps], [*first.edges, *between, *then.edges], first.heads, then.tails)

    def __lshift__(self, before: Composable) -> Pipeline:
        """``b << a``: the same as ``a >> b``."""
        return before >> self if isinstance(before, Composable) else NotImplemented

    def __or__(self, other: Composable) -> Pipeline:
        """``a | b``: a and b run independently of each other."""
        return _side_by_side([self.as_step(), other.as_step()]) if isinstance(other, Composable) else NotImplemented


class Pipeline(Composable):
    """Steps and the order between the steps, made by ``>>``, ``|``, `chain` and `group`."""

    def __init__(
        self, steps: Iterable[Step], edges: Iterable[tuple[Step, Step]], heads: Iterable[Step], tails: Iterable[Step]
    ) -> None:
        self.steps = tuple(dict.fromkeys(steps))
        _check_bare(self.steps)
        self.edges = tuple(dict.fromkeys(edges))
        """Pairs of steps ``(before, after)``."""
        self.heads = tuple(dict.fromkeys(heads))
        self.tails = tuple(dict.fromkeys(tails))

    def __repr__(self) -> str:
        return f"<Pipeline of {len(self.steps)} steps>"

    def as_step(self) -> Pipeline:
        """Return this pipeline."""
        return self

    def enqueue(
        self, *, run_id: str | None = None, on_commit: bool | None = None, database: str | None = None
    ) -> PipelineResult:
        """Send all tasks of the pipeline, or none. Inside a database transaction, they are sent when the transaction
        commits.

        ``run_id`` is the run's id; a new one by default. ``on_commit`` and ``database`` are the options of
        `Sendable.using`; by default the values of the steps. Returns a handle on the run.

        Raises `DependencyCycleError`, `TaskUsageError` or `TaskValidationError` if the graph is not valid;
        `BacklogFullError` or `RedisConnectionError` if the queue did not accept the tasks.
        """
        options, tasks = self._build(run_id, on_commit, database)
        return self._result(options, tasks, sending.send(options, tasks))

    async def aenqueue(
        self, *, run_id: str | None = None, on_commit: bool | None = None, database: str | None = None
    ) -> PipelineResult:
        """Send all tasks of the pipeline, or none, from a coroutine.

        ``run_id``, ``on_commit``, ``database`` and the errors are the same as for `enqueue`. Returns a handle on the
        run.
        """
        if all(step.options.names_user for step in self.steps):
            options, tasks = self._build(run_id, on_commit, database)
        else:
            options, tasks = await call_with_user(self._build, run_id, on_commit, database)
        return self._result(options, tasks, await sending.asend(options, tasks))

    def _result(self, options: TaskOptions, tasks: Sequence[Task], results: Sequence[TaskResult]) -> PipelineResult:
        return PipelineResult(tasks[0].run_id, options.queue, dict(zip(self.steps, results, strict=True)))

    def _build(
        self, run_id: str | None, on_commit: bool | None, database: str | None
    ) -> tuple[TaskOptions, list[Task]]:
        queues = sorted({step.options.queue for step in self.steps})
        if len(queues) > 1:
            raise TaskUsageError(
                f"a pipeline runs in one queue, these steps name {', '.join(queues)}: use using(queue=…)"
            )
        before: dict[Step, list[Step]] = {step: [] for step in self.steps}
        for first, then in self.edges:
            before[then].append(first)
        check_acyclic({step.label: [parent.label for parent in before[step]] for step in self.steps})
        made = {step: step.to_send() for step in self.steps}
        ids = {step: task.task_id for step, task in made.items()}
        run = run_id or new_task_id()
        tasks = [step.place_in_run(made[step], [ids[parent] for parent in before[step]], run) for step in self.steps]
        check_graph(tasks)
        given = {
            "on_commit": self._get_common_option("on_commit") if on_commit is None else on_commit,
            "database": self._get_common_option("database") if database is None else database,
        }
        options = change_options(self.steps[0].options, given, SENDABLE, "Pipeline.enqueue()")
        middleware = dict.fromkeys(entry for step in self.steps for entry in step.options.middleware)
        return replace(options, middleware=tuple(middleware)) if middleware else options, tasks

    def _get_common_option(self, option: str) -> Any:
        """Return the value of an option that all steps with this option have in common; None if no step has the
        option.
        """
        named = sorted({value for step in self.steps if (value := getattr(step.options, option)) is not None})
        if len(named) > 1:
            raise TaskUsageError(
                f"a pipeline is sent as a whole, these steps name {', '.join(map(repr, named))} as {option}: let them name one, "
                f"or call enqueue({option}=…)"
            )
        return named[0] if named else None


class Step(Pipeline):
    """One call of a task, not sent yet, made by ``.s()``: ``send_receipt.s("acme", 42)``."""

    def __init__(
        self,
        build: Callable[[TaskOptions, Sequence[Any], Mapping[str, Any]], Task],
        name: str,
        options: TaskOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        bare: Composable | None = None,
    ) -> None:
        self.name, self.options, self.args, self.kwargs = name, options, args, kwargs
        self.bare = bare
        """The task object in the pipeline, if the call was written as ``task`` instead of ``task.s()``."""
        self._call = build
        super().__init__([self], [], [self], [self])

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs.items())]
        return f"<step {self.name}({', '.join(given)[:200]})>"

    @property
    def label(self) -> str:
        """The name of the step within its pipeline."""
        return self.options.task_id or f"{self.name}#{id(self):x}"

    @property
    def expires(self) -> float | None:
        """The seconds after sending at which the task expires: if it has not started by then, it becomes a dead letter.
        None if the task never expires, or expires at a fixed moment.
        """
        given = self.options.expires_at
        return given.total_seconds() if isinstance(given, timedelta) else self.options.expires

    def using(self, **options: Unpack[SendOptions]) -> Step:
        """Return another step for the same call with other ``options`` (see `Sendable.using`).

        Raises `TaskUsageError` in the same cases.
        """
        changes = change_options(self.options, options, SENDABLE, f"{self.name}.s().using()")
        return Step(self._call, self.name, changes, self.args, self.kwargs)

    def to_task(self) -> Task:
        """Return the engine's task for this call alone, as a schedule stores it. The task has neither the current user
        nor the current lane.
        """
        with as_user(None), current_lane.hold(None):
            task = self._call(self.options, self.args, self.kwargs)
        sending.refuse_unimportable([task])
        return task

    def to_send(self) -> Task:
        """Return the engine's task for this call. The user is the call's user, or else the current user."""
        return self._call(self.options, self.args, self.kwargs)

    def place_in_run(self, task: Task, depends_on: Sequence[str], run_id: str) -> Task:
        """Return a copy of ``task`` that belongs to a run: with the ids of ``depends_on`` and with the ``run_id``."""
        parents = tuple(dict.fromkeys((*self.options.depends_on, *depends_on)))
        copy = task.model_copy(update={"depends_on": parents, "run_id": run_id})
        return copy.set_payload_bytes(task.payload_bytes, self.options.task_id)


class PipelineResult(Handle):
    """A handle on a run, returned by `Pipeline.enqueue`: ``id``, a `TaskResult` for each step (``run[step]``), and
    methods for the whole run.
    """

    def __init__(self, run_id: str, queue: str, results: Mapping[Step, TaskResult]) -> None:
        super().__init__(queue)
        self.id = run_id
        self._results = dict(results)

    def __repr__(self) -> str:
        return f"<PipelineResult {self.id!r} of {len(self._results)} tasks>"

    def __getitem__(self, step: Step) -> TaskResult:
        return self._results[step]

    def __len__(self) -> int:
        return len(self._results)

    @property
    def results(self) -> list[TaskResult]:
        """The handles of the steps, in the order of the pipeline."""
        return list(self._results.values())

    def view(self) -> RunView:
        """Return the current state of the run's tasks. Raises `TaskNotFoundError` before the commit, and after the
        queue has deleted all tasks of the run.
        """
        return self._queue_to_ask().run(self.id)

    @property
    def state(self) -> str:
        """The run's current state: running, finished, failed (until its dead letters are requeued or discarded) or
        canceled.

        Raises `TaskNotFoundError` in the same cases as `view`.
        """
        return self.view().state

    def cancel(self) -> int:
        """Cancel the run's tasks that have not ended. If the transaction has not committed, the tasks are not sent.
        Returns the number of canceled tasks.

        Raises `TaskNotFoundError` if the queue does not know the run any more.
        """
        if any(result.is_waiting for result in self.results):
            return sum(result.cancel() for result in reversed(self.results))
        return cancel_run(self._queue_to_ask(), self.id)

    def wait(self, timeout: float | timedelta | None = None) -> str:
        """Wait until the run is not ``running`` any more. Returns its `state`.

        ``timeout`` is the longest wait in seconds or as a timedelta; None for no limit. Raises `TaskWaitTimeoutError`
        when the time is over.
        """
        for pause in self._pauses(timeout, RUN_POLL_SECONDS, RUN_POLL_SECONDS):
            if (state := self.state) != "running":
                return state
            time.sleep(pause)
        raise self._too_late(timeout)

    async def aview(self) -> RunView:
        """Return the current state of the run's tasks. Raises `TaskNotFoundError` in the same cases as `view`."""
        return await (await self._aqueue_to_ask()).run(self.id)

    async def astate(self) -> str:
        """Return the run's current `state`. Raises `TaskNotFoundError` in the same cases as `view`."""
        return (await self.aview()).state

    async def acancel(self) -> int:
        """Cancel the run's tasks that have not ended. Returns the number of canceled tasks. Raises `TaskNotFoundError`
        in the same cases as `cancel`.
        """
        if any(result.is_waiting for result in self.results):
            return sum([await result.acancel() for result in reversed(self.results)])
        return await acancel_run(await self._aqueue_to_ask(), self.id)

    async def await_(self, timeout: float | timedelta | None = None) -> str:
        """Await until the run is not ``running`` any more. Returns its `state`.

        ``timeout`` and the error are the same as for `wait`.
        """
        for pause in self._pauses(timeout, RUN_POLL_SECONDS, RUN_POLL_SECONDS):
            if (state := await self.astate()) != "running":
                return state
            await asyncio.sleep(pause)
        raise self._too_late(timeout)

    def _too_late(self, timeout: float | timedelta | None) -> TaskWaitTimeoutError:
        return TaskWaitTimeoutError(f"run {self.id!r} of {len(self)} tasks had not ended after {timeout} s")


def chain(*pipelines: Composable) -> Pipeline:
    """Return a pipeline that runs ``pipelines`` one after the other: ``chain(a, b, c)`` is ``a >> b >> c``.

    Raises `TaskUsageError` if an argument is neither a pipeline nor a task without arguments.
    """
    return reduce(lambda before, after: before >> after, _check_parts("chain", pipelines))


def group(pipelines: Iterable[Composable], *loose: NoReturn) -> Pipeline:
    """Return a pipeline that runs ``pipelines`` at the same time, as ``a | b | c`` does: ``group([a, b, c])``.

    Raises `TaskUsageError` if it is called without a list; ``loose`` then contains the other arguments.
    """
    if loose or not isinstance(pipelines, Iterable):
        got = ", ".join(map(repr, (pipelines, *loose)))
        raise TaskUsageError(f"group() takes one list, such as group([a.s(…), b.s(…)]), got {got:.200}")
    return _side_by_side(_check_parts("group", list(pipelines)))


def _side_by_side(pipelines: Sequence[Pipeline]) -> Pipeline:
    return Pipeline(
        [step for pipeline in pipelines for step in pipeline.steps],
        [edge for pipeline in pipelines for edge in pipeline.edges],
        [head for pipeline in pipelines for head in pipeline.heads],
        [tail for pipeline in pipelines for tail in pipeline.tails],
    )


def _check_parts(what: str, given: Sequence[Composable]) -> Sequence[Pipeline]:
    for part in given:
        if not isinstance(part, Composable):
            raise TaskUsageError(f"{what}() takes steps and pipelines, such as task.s(…), got {short(part)}")
    if not given:
        raise TaskUsageError(f"{what}() needs at least one step")
    return [part.as_step() for part in given]


def _check_bare(steps: Iterable[Step]) -> None:
    """Raise `TaskUsageError` if a task is written twice in a pipeline without ``.s()``, because it is unclear whether
    one task or two tasks are meant.
    """
    seen: dict[int, Step] = {}
    for step in steps:
        if step.bare is not None and seen.setdefault(id(step.bare), step) is not step:
            raise TaskUsageError(
                f"{step.name} stands in this pipeline more than once: write {step.name}.s() for each task that is meant, or "
                "name one step and use it again (step = ….s())"
            )
