"""Assertions about enqueued tasks. Their messages list the tasks that were enqueued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from django_fairque.tasks import registry
from django_fairque.testing.capture import Captured, get_task_name

from .capture import Capture, as_kept, capture_tasks, innermost

if TYPE_CHECKING:
    from django_fairque.engine.model.lanes import Lane
    from django_fairque.engine.model.priority import Priority


def assert_enqueued(
    task: Any,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    user_id: object = None,
    priority: Priority | None = None,
    lane: Lane | None = None,
    queue: str | None = None,
    count: int | None = None,
) -> list[Captured]:
    """Assert that a task was enqueued in the innermost open `capture_tasks` block.

    ``task`` is the task or its name. ``args`` and ``kwargs`` are the expected arguments, which are compared in the JSON
    form that a worker gets. ``user_id``, ``priority``, ``lane`` and ``queue`` are further expected values. A value of
    None is not compared. ``count`` is the exact number of calls; at least one by default.

    Returns the calls that match. Raises `AssertionError` if no call matches, or if not exactly ``count`` calls match.
    """
    capture = innermost()
    if capture is None:
        raise AssertionError(
            "no tasks are captured here: use capture_tasks(), eager(), FairqueTestMixin or the fixture `fairque`"
        )
    definition = registry.find(get_task_name(task))
    if definition is not None and definition.types is not None:
        known = definition.types.dump_known(args or (), kwargs or {})
        args, kwargs = (None if args is None else known[0]), (None if kwargs is None else known[1])
    wanted: dict[str, Any] = {
        "args": None if args is None else as_kept(list(args)),
        "kwargs": None if kwargs is None else as_kept(dict(kwargs)),
        "user_id": None if user_id is None else str(user_id),
        "priority": priority,
        "lane": lane,
        "queue": queue,
    }
    wanted = {key: value for key, value in wanted.items() if value is not None}
    found = [
        captured
        for captured in capture.of(task)
        if all(getattr(captured, key) == value for key, value in wanted.items())
    ]
    if len(found) == count or (count is None and found):
        return found
    name = get_task_name(task)
    what = ", ".join(f"{key}={value!r}" for key, value in wanted.items())
    expected = "at least once" if count is None else f"{count} times"
    lines = [f"expected {name} to be enqueued {expected}" + (f" with {what}" if what else "") + f", found {len(found)}"]
    lines.append("enqueued were:" if len(capture) else "nothing was enqueued")
    lines += [f"  {captured!r}" for captured in capture]
    raise AssertionError("\n".join(lines))


def assert_fair(users: Iterable[str], weights: Mapping[str, float] | None = None) -> None:
    """Assert that the order in which tasks started was fair.

    ``users`` are the users of the started tasks, in the order of their starts; ``weights`` are the users' weights, 1 by
    default. While two users both have tasks left to start, the numbers of their started tasks divided by their weights
    may differ by at most one task. Raises `AssertionError` otherwise.
    """
    order = list(users)
    share = {user: (weights or {}).get(user, 1.0) for user in order}
    left, started = Counter(order), Counter[str]()
    for index, user in enumerate(order, 1):
        started[user] += 1
        left[user] -= 1
        waiting = [user for user in left if left[user] > 0]
        for ahead in waiting:
            for behind in waiting:
                lead = started[ahead] / share[ahead] - started[behind] / share[behind]
                if lead > max(1 / share[ahead], 1 / share[behind]) + 1e-9:
                    raise AssertionError(
                        f"after {index} starts {ahead!r} had {started[ahead]} and {behind!r} {started[behind]} (weights "
                        f"{share[ahead]:g} and {share[behind]:g}), although both had more to come: that is not fair"
                    )


class FairqueTestMixin:
    """Captures the tasks that each test enqueues in ``self.tasks``. List this mixin before the test case class."""

    tasks: Capture

    def setUp(self) -> None:
        """Start to capture tasks. The capture ends with the test."""
        stack = ExitStack()
        self.tasks = stack.enter_context(capture_tasks())
        self.addCleanup(stack.close)  # type: ignore[attr-defined]
        super().setUp()  # type: ignore[misc]

    def assertEnqueued(self, task: Any, **expected: Any) -> list[Captured]:  # noqa: N802
        """Assert that a task was enqueued, like `assert_enqueued`.

        ``task`` is the task or its name; ``expected`` are the other arguments of `assert_enqueued`. Returns the
        captured calls. Raises `AssertionError` if no call matches.
        """
        return assert_enqueued(task, **expected)

    def assertNothingEnqueued(self) -> None:  # noqa: N802
        """Assert that no task was enqueued. Otherwise raises `AssertionError` with the calls."""
        if len(self.tasks):
            raise AssertionError("\n".join(["expected nothing to be enqueued, found:", *map(repr, self.tasks)]))

    def runTasks(self, *, raise_errors: bool = True) -> int:  # noqa: N802
        """Run the captured tasks, and the tasks that they enqueue. Returns how many tasks ran.

        With ``raise_errors`` (the default), errors of the tasks are raised; if False, the errors are stored in
        ``Captured.error``.
        """
        return self.tasks.run(raise_errors=raise_errors)
