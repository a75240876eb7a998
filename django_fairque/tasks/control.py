"""What a task raises to say what should become of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.durations import duration
from django_fairque.engine.model.errors import short

from .errors import TaskUsageError

if TYPE_CHECKING:
    from datetime import timedelta


class Retry(Exception):  # noqa: N818 - an instruction, not an error
    """Not yet: run this task again in ``delay`` seconds, without using up its retry budget.

    Without a delay it waits as long as after an error. With delays of 1 second and more a task may do this without limit; it
    ends when its ``expires`` has passed. Of retries with shorter delays, only ten in a row are that short: further ones wait
    1 second, and after 1,000 in a row the task becomes a dead letter.
    """

    def __init__(self, delay: float | timedelta | None = None, reason: str = "") -> None:
        super().__init__(delay, reason)
        if isinstance(delay, str):
            raise TaskUsageError(
                f"the delay of Retry must be a number of seconds or a timedelta, got the text {short(delay)}; what is said of "
                f"it goes by name: Retry(reason={short(delay)})"
            )
        self.delay = None if delay is None else duration(delay, "the delay of Retry")
        self.reason = _text(reason, "Retry")

    def __str__(self) -> str:
        return self.reason or "the task asked to be run again"


class Discard(Exception):  # noqa: N818 - an instruction, not an error
    """The work is no longer wanted: the task ends as CANCELED, without retry and without a dead letter."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = _text(reason, "Discard")

    def __str__(self) -> str:
        return self.reason or "the task discarded itself"


def _text(reason: object, what: str) -> str:
    if not isinstance(reason, str):
        raise TaskUsageError(f"the reason of {what} must be text, got {short(reason)}")
    return reason
