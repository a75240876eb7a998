"""One dead letter: what it was to do, what it died of each time, and what is to become of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import quote
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import Action, AdminPage
from django_fairque.engine.model.errors import FairQueueError, TaskNotFoundError
from django_fairque.engine.model.task import Task, Undecodable
from django_fairque.monitoring.redaction import as_text, redacted

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


EDITABLE_PAYLOAD_MAX_BYTES = 200_000
"""A longer payload is not edited in a browser."""


class DeadLetterPage(AdminPage):
    """Its payload is shown redacted. Who may requeue it can edit it, and then sees it in full; that is logged."""

    name = "dead_letter"
    path = "dead-letters/<str:key>/"
    title = gettext_lazy("Dead letter")
    permission = "view_deadletter"
    in_menu = False
    list_name = "dead_letters"
    refreshes = False

    is_gone = False
    """It was moved by what was just done: there is nothing to come back to."""
    edits = False
    edited: str | None = None
    """What somebody wrote, kept when it can't be taken."""
    problem = ""

    @property
    def subject(self) -> str:
        return self.key

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        response = super().post(request, **kwargs)
        return self.get(request, **kwargs) if self.edits else response

    def report_failure(self, error: Exception) -> None:
        if isinstance(error, TaskNotFoundError):  # somebody else has moved it
            self.edits, self.is_gone = False, True

    def back_to(self) -> str:
        return self.url("dead_letters") if self.is_gone else super().back_to()

    def template_context(self) -> dict[str, Any]:
        entry = self.queue.dlq.get(self.key)
        task = entry.original_task
        shown = redacted(task.payload)
        return {
            "entry": entry,
            "task": task,
            "attempts": entry.retry_history[::-1],
            "payload": as_text(shown),
            "is_redacted": shown != task.payload,
            "is_editable": len(task.payload_bytes) <= EDITABLE_PAYLOAD_MAX_BYTES,
            "most_edited": EDITABLE_PAYLOAD_MAX_BYTES,
            "task_url": self.link("task", quote(task.task_id)),
            "same": self.url("dead_letters", fingerprint=entry.fingerprint),
            "back": self.url("dead_letters"),
            "here": self.url(self.name, quote(self.key)),
            "problem": self.problem,
            "edit": (_editable(task) if self.edited is None else self.edited) if self.edits else None,
        }

    @Action("change_deadletter")
    def requeue(self) -> str:
        self.queue.dlq.requeue(self.key)
        self.is_gone = True
        return _("Dead letter %(entry)s requeued") % {"entry": self.key}

    @Action("change_deadletter")
    def edit(self) -> str:
        if len(self.queue.dlq.get(self.key).original_task.payload_bytes) > EDITABLE_PAYLOAD_MAX_BYTES:
            raise ValueError(
                _("The payload is too large to be edited here: use manage.py fairque_dlq requeue --payload.")
            )
        self.edits = True
        return _("The payload of %(entry)s is shown as it is, to be edited") % {"entry": self.key}

    @Action("change_deadletter")
    def requeue_edited(self) -> str:
        """The engine checks the payload before it changes anything; what was written stays in the form."""
        self.edits, self.edited = True, self.request.POST.get("payload", "")
        try:
            self.queue.dlq.requeue(self.key, self.edited.encode())
        except TaskNotFoundError:
            raise
        except (FairQueueError, ValueError) as error:
            self.problem = _("The payload can't be taken: %(error)s") % {"error": error}
            raise ValueError(self.problem) from error
        self.edits, self.is_gone = False, True
        return _("Dead letter %(entry)s requeued with another payload") % {"entry": self.key}

    @Action("delete_deadletter")
    def discard(self) -> str:
        text = _("The task of %(entry)s is canceled, and what waits for it. This can’t be undone.")
        self.ask_first(text % {"entry": self.key}, _("Yes, discard it"), _("Discard this dead letter?"))
        self.queue.dlq.discard(self.key)
        self.is_gone = True
        return _("Dead letter %(entry)s discarded") % {"entry": self.key}


def _editable(task: Task) -> str:
    """The payload as JSON that says the same; what can't be seen (a mark that turns the line around) is written out."""
    if isinstance(task.payload, Undecodable):
        text = task.payload_bytes.decode("utf-8", "backslashreplace")
    else:
        text = json.dumps(task.payload, indent=2, ensure_ascii=False)
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
