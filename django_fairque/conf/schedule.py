"""The section of one schedule: recurring work that is declared in settings or in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.options import Mistake, Number, Options, PriorityName, seconds

from .worker import QUEUE_NAME_PATTERN, QUEUE_NAME_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator


class ScheduleConfig(Options):
    """One of ``SCHEDULES``. Durations are seconds; docs/schedules.md explains each field."""

    task: str = Field(min_length=1, max_length=200, description='the name of a task, such as "shop.tasks.report"')
    cron: str | None = Field(default=None, description='a cron expression of five fields, such as "0 3 * * *"')
    every: Number | None = Field(default=None, description="a number of seconds, at least 1")
    timezone: str | None = Field(default=None, description='the name of a time zone, such as "Europe/Berlin"')
    user: str | None = Field(default=None, min_length=1, description="a user's id")
    args: list[Any] = Field(default_factory=list, description="a list of arguments")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="a mapping of arguments")
    priority: PriorityName | None = Field(default=None, description="the name of a priority, such as HIGH")
    queue: str | None = Field(
        default=None, pattern=QUEUE_NAME_PATTERN, description=f"a queue's name: {QUEUE_NAME_WORDS}"
    )
    missed: Literal["skip", "one", "all"] = Field(default="skip", description='"skip", "one" or "all"')
    grace: Number = seconds(60, least=0)
    expires: Number | None = seconds(None)
    enabled: bool = Field(default=True, description="true or false")

    def contradictions(self) -> Iterator[Mistake]:
        from django_fairque.engine.schedules.due_times import Timing

        try:
            Timing.create(self.cron, self.every, self.timezone or "UTC", 0.0)
        except TaskValidationError as error:
            field = "timezone" if "time zone" in str(error) else "cron" if self.cron is not None else "every"
            yield Mistake("timing" if field == "cron" else "value", (field,), str(error))
