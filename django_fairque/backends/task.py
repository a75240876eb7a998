"""What ``@task`` of `django.tasks` makes for this backend: Django's task, with a user."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.tasks.options import user_id as checked_user_id

from .compat import AnyTask, InvalidTask

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class FairqueTask(AnyTask):
    """A task of `django.tasks`. ``user_id`` is whom it is for: text, an integer or a UUID, kept as text.

    None leaves the user to the backend's ``USER`` option.
    """

    user_id: str | None = None

    def __post_init__(self) -> None:
        if self.user_id is not None:
            try:
                object.__setattr__(self, "user_id", checked_user_id(self.user_id, "user_id"))
            except TaskValidationError as error:
                raise InvalidTask(str(error)) from None
        super().__post_init__()

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | timedelta | None = None,
        backend: str | None = None,
        user_id: object = None,
    ) -> Self:
        """A copy that is sent otherwise. A timedelta counts from now."""
        if isinstance(run_after, timedelta):
            run_after = timezone.now() + run_after
        given: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
            "user_id": user_id,
        }
        return replace(self, **{name: value for name, value in given.items() if value is not None})
