"""One dead letter: what it was to do, what it died of each time, and what is to become of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.admin.utils import quote, unquote
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import Action, ConfirmingPage, ask_first, moment
from django_fairque.engine.model.errors import FairQueueError, TaskNotFoundError
from django_fairque.engine.model.task import Undecodable
from django_fairque.monitoring.formatting import size
from django_fairque.monitoring.redaction import as_text, redacted

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue

EDITABLE_PAYLOAD_MAX_BYTES = 200_000
"""A longer payload is not edited in a browser."""


def _about(page: DeadLetterPage, request: HttpRequest) -> str:
    return page.entry_id


class DeadLetterPage(ConfirmingPage):
    """Its payload is shown redacted. Who may requeue it can edit it, and then sees it in full; that is logged."""

    name = "dead_letter"
    path = "dead-letters/<str:key>/"
    title: ClassVar[StrOrPromise] = gettext_lazy("Dead letter")
    permission = "view_deadletter"
    template = "admin/django_fairque/dead_letter.html"
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
    def entry_id(self) -> str:
        return unquote(self.kwargs["key"])

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        response = super().post(request, **kwargs)
        return self.get(request, **kwargs) if self.edits else response

    def report_failure(self, error: Exception) -> None:
        if isinstance(error, TaskNotFoundError):  # somebody else has moved it
            self.edits, self.is_gone = False, True

    def back_to(self, request: HttpRequest) -> str:
        return self.url("dead_letters") if self.is_gone else super().back_to(request)

    def template_context(self, queue: FairQueue) -> dict[str, Any]:
        entry = queue.dlq.get(self.entry_id)
        task = entry.original_task
        shown = redacted(task.payload)
        facts = {
            "entry": entry,
            "task": task,
            "died": moment(entry.moved_at),
            "created": moment(task.created_at),
            "attempts": [{"attempt": each, "at": moment(each.at)} for each in reversed(entry.retry_history)],
            "payload": as_text(shown),
            "is_redacted": shown != task.payload,
            "is_editable": len(task.payload_bytes) <= EDITABLE_PAYLOAD_MAX_BYTES,
            "most_edited": size(EDITABLE_PAYLOAD_MAX_BYTES),
            "task_url": self.link("task", quote(task.task_id)),
            "same": self.url("dead_letters", fingerprint=entry.fingerprint),
            "back": self.url("dead_letters"),
            "here": self.url(self.name, quote(self.entry_id)),
            "problem": self.problem,
            "edit": None,
        }
        if self.edits:
            facts["edit"] = _editable(task) if self.edited is None else self.edited
        return facts

    def _requeue(self, queue: FairQueue, request: HttpRequest) -> str:
        queue.dlq.requeue(self.entry_id)
        self.is_gone = True
        return _("Dead letter %(entry)s requeued") % {"entry": self.entry_id}

    def _edit(self, queue: FairQueue, request: HttpRequest) -> str:
        if len(queue.dlq.get(self.entry_id).original_task.payload_bytes) > EDITABLE_PAYLOAD_MAX_BYTES:
            raise ValueError(
                _("The payload is too large to be edited here: use manage.py fairque_dlq requeue --payload.")
            )
        self.edits = True
        return _("The payload of %(entry)s is shown as it is, to be edited") % {"entry": self.entry_id}

    def _requeue_edited(self, queue: FairQueue, request: HttpRequest) -> str:
        """The engine checks the payload before it changes anything; what was written stays in the form."""
        self.edits, self.edited = True, request.POST.get("payload", "")
        try:
            queue.dlq.requeue(self.entry_id, self.edited.encode())
        except TaskNotFoundError:
            raise
        except (FairQueueError, ValueError) as error:
            self.problem = _("The payload can't be taken: %(error)s") % {"error": error}
            raise ValueError(self.problem) from error
        self.edits, self.is_gone = False, True
        return _("Dead letter %(entry)s requeued with another payload") % {"entry": self.entry_id}

    def _discard(self, queue: FairQueue, request: HttpRequest) -> str:
        text = _("The task of %(entry)s is canceled, and what waits for it. This can’t be undone.")
        ask_first(request, text % {"entry": self.entry_id}, _("Yes, discard it"), title=_("Discard this dead letter?"))
        queue.dlq.discard(self.entry_id)
        self.is_gone = True
        return _("Dead letter %(entry)s discarded") % {"entry": self.entry_id}

    actions: ClassVar[dict[str, Action]] = {
        "requeue": Action("change_deadletter", _requeue, _about),
        "edit": Action("change_deadletter", _edit, _about),
        "requeue_edited": Action("change_deadletter", _requeue_edited, _about),
        "discard": Action("delete_deadletter", _discard, _about),
    }


def _editable(task: Task) -> str:
    """The payload as JSON that says the same; what can't be seen (a mark that turns the line around) is written out."""
    if isinstance(task.payload, Undecodable):
        text = task.payload_bytes.decode("utf-8", "backslashreplace")
    else:
        text = json.dumps(task.payload, indent=2, ensure_ascii=False)
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
