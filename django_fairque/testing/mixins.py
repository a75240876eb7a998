"""For `unittest` and Django's test cases."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from .assertions import assert_enqueued
from .capture import capture_tasks

if TYPE_CHECKING:
    from .capture import Capture
    from .captured import Captured


class FairqueTestMixin:
    """Captures what each test enqueues in ``self.tasks``; put it before the test case class."""

    tasks: Capture

    def setUp(self) -> None:
        stack = ExitStack()
        self.tasks = stack.enter_context(capture_tasks())
        self.addCleanup(stack.close)  # type: ignore[attr-defined]
        super().setUp()  # type: ignore[misc]

    def assertEnqueued(self, task: Any, **expected: Any) -> list[Captured]:  # noqa: N802
        """See `django_fairque.testing.assert_enqueued`."""
        return assert_enqueued(task, **expected)

    def assertNothingEnqueued(self) -> None:  # noqa: N802
        if len(self.tasks):
            raise AssertionError("\n".join(["expected nothing to be enqueued, found:", *map(repr, self.tasks)]))

    def runTasks(self, *, raise_errors: bool = True) -> int:  # noqa: N802
        """Run what was captured, and what that enqueues; how many tasks ran."""
        return self.tasks.run(raise_errors=raise_errors)
