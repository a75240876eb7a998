"""The list of dead letters, grouped by error or one by one, and the page of one dead letter. Both pages can requeue and
discard dead letters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django.contrib.admin.utils import quote
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from django_fairque.admin.page_queues import queue_names
from django_fairque.admin.pages.base import Action, AdminPage, Question
from django_fairque.engine.dead_letters.dead_letters import MAX_DEAD_LETTERS_READ
from django_fairque.engine.dead_letters.letters import Filter, Filters
from django_fairque.engine.model.errors import FairQueueError, TaskNotFoundError
from django_fairque.engine.model.records import FailureType
from django_fairque.engine.model.task import Task, Undecodable
from django_fairque.monitoring.formatting import number, read_age
from django_fairque.monitoring.redaction import as_text, redact_value, redacted_line

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from django_stubs_ext import StrPromise

    from django_fairque.engine.model.records import ActKind

T = TypeVar("T")

FILTERS = {
    "failure_type": gettext_lazy("Type"),
    "user_id": gettext_lazy("User"),
    "name": gettext_lazy("Task"),
    "fingerprint": gettext_lazy("Fingerprint"),
    "older_than": gettext_lazy("Older than"),
    "newer_than": gettext_lazy("Newer than"),
}
"""The filters of the list, with their labels in the form."""
AGE_FILTERS = ("older_than", "newer_than")
LETTERS_PER_PAGE = 50
LETTERS_PER_REQUEST = 1000
"""Maximum number of dead letters that one request moves. The engine moves them a hundred at a time."""

REQUEUE_HOW_MANY = ngettext_lazy("Requeue %(count)s dead letter?", "Requeue %(count)s dead letters?", "n")
MOVE_HOW_MANY = ngettext_lazy("Move %(count)s dead letter?", "Move %(count)s dead letters?", "n")
DISCARD_HOW_MANY = ngettext_lazy("Discard %(count)s dead letter?", "Discard %(count)s dead letters?", "n")
REQUEUED_OF = ngettext_lazy(
    "%(done)s of %(total)s dead letter requeued", "%(done)s of %(total)s dead letters requeued", "n"
)
DISCARDED_OF = ngettext_lazy(
    "%(done)s of %(total)s dead letter discarded", "%(done)s of %(total)s dead letters discarded", "n"
)
DISCARD_MEANING = gettext_lazy("Their tasks are canceled, and what waits for them. This can’t be undone.")
NOTHING_MATCHES = gettext_lazy("There is nothing to do: no dead letter matches. Nothing was changed.")


def _age(text: str) -> float:
    try:
        return read_age(text)
    except ValueError:
        sentence = _("expected an age such as 90s, 10m, 2h or 7d, got %(got)s")
        raise ValueError(sentence % {"got": repr(text[:80])}) from None


class DeadLettersPage(AdminPage):
    """Shows groups of dead letters with equal errors (`_groups`, dead_letters_groups.html). With ``?show=letters`` or a
    fingerprint, the page shows single dead letters (`_letters`, dead_letters_list.html).
    """

    name = "dead_letters"
    title = gettext_lazy("Dead letters")
    permission = "view_deadletter"
    refreshes = False  # a refresh would clear the selection

    @cached_property
    def written(self) -> dict[str, str]:
        """The filters as the operator typed them. A user's id and a task's name keep their white space."""
        typed = {key: self.request.GET.get(key, "") for key in FILTERS}
        texts = {key: text if key in ("user_id", "name") else text.strip() for key, text in typed.items()}
        return {key: text for key, text in texts.items() if text}

    @property
    def filters(self) -> Filters:
        """The filters in the form that the engine uses.

        An invalid filter raises `ValueError`: otherwise an action would apply to more dead letters than the operator meant.
        """
        found: dict[str, Any] = {}
        try:
            for key, text in self.written.items():
                found[key] = _age(text) if key in AGE_FILTERS else text
            Filter.create(cast("Filters", found))
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
        return cast("Filters", found)

    @property
    def filters_in_words(self) -> str:
        """The filters as text, for the audit log and for questions."""
        return ", ".join(f"{key} {value}" for key, value in self.written.items()) or _("every one of them")

    @cached_property
    def other_queues(self) -> list[str]:
        return [name for name in queue_names() if name != self.queue_name]

    @cached_property
    def selected_ids(self) -> list[str]:
        return self.posted_list("entry")

    @property
    def subject(self) -> str:
        if "as_act" in self.request.POST:
            return ""  # no message, because the audit log shows the act
        is_all = self.request.POST["action"].endswith("_all")
        return self.filters_in_words if is_all else ", ".join(self.selected_ids)

    def get_return_url(self) -> str:
        """Return the URL of the list of groups if the action was started there. The forms of that list post to the
        address of one group.
        """
        if self.act_id or self.request.POST.get("from") != "groups":
            return super().get_return_url()
        query = {key: text for key, text in self.written.items() if key != "fingerprint"}
        return self.url(self.name, **query)

    def template_context(self) -> dict[str, Any]:
        facts = {
            "counts": [
                {"kind": kind, "count": count, "url": self.url(self.name, failure_type=kind, show="letters")}
                for kind, count in self.queue.dlq.counts().items()
            ],
            "fields": [
                {
                    "name": key,
                    "label": label,
                    "value": self.written.get(key, ""),
                    "choices": [kind.value for kind in FailureType] if key == "failure_type" else [],
                    "hint": _("90s, 10m, 2h, 7d") if key in AGE_FILTERS else "",
                }
                for key, label in FILTERS.items()
            ],
            "here": self.url(self.name),
            "can_move": bool(self.other_queues) and self.may("delete_deadletter"),
            "all_letters": self.url(self.name, show="letters"),
        }
        shows_letters = self.request.GET.get("show") == "letters" or "fingerprint" in self.written
        try:
            return {**facts, **(self._letters() if shows_letters else self._groups())}
        except ValueError as error:
            return {**facts, "problem": str(error)}

    def _groups(self) -> dict[str, Any]:
        found = self.queue.dlq.groups(MAX_DEAD_LETTERS_READ, **self.filters)
        return {
            "groups": [
                {
                    "group": group,
                    "sample": redacted_line(group.sample),
                    "url": self.url(self.name, **{**self.written, "fingerprint": group.fingerprint}),
                }
                for group in found.groups
            ],
            "looked_at": found.looked_at,
            "is_whole": found.is_whole,
        }

    def _letters(self) -> dict[str, Any]:
        page = self.queue.dlq.letters(LETTERS_PER_PAGE, self.request.GET.get("cursor") or None, **self.filters)
        rows = [
            {
                "letter": letter,
                "url": self.url("dead_letter", quote(letter.entry_id)),
                "error": redacted_line(letter.reason),
            }
            for letter in page.items
        ]
        return {"letters": rows, **self.build_page_links(page.cursor, **self.written, show="letters")}

    @Action("change_deadletter")
    def requeue(self) -> str:
        requeue = partial(self.queue.dlq.requeue_many, lane=self.lane)
        return self.with_lane(self._act_on_selected(requeue, _("%(count)s requeued")))

    @Action("delete_deadletter")
    def discard(self) -> str:
        count = len(self.selected_ids)
        if count:
            title = DISCARD_HOW_MANY % {"n": count, "count": number(count)}
            self.ask_first(str(DISCARD_MEANING), _("Yes, discard them"), title, is_dangerous=True)
        return self._act_on_selected(self.queue.dlq.discard_many, _("%(count)s discarded"))

    def _act_on_selected(self, act: Callable[[Sequence[str]], int], done: str) -> str:
        """Act on the selected dead letters. The message contains the number of dead letters that no longer exist."""
        if not self.selected_ids:
            raise ValueError(_("Select at least one dead letter. Nothing was changed."))
        count = act(self.selected_ids)
        if not count:
            raise ValueError(_("None of these dead letters is there any more. Nothing was changed."))
        summary = done % {"count": number(count)}
        missing = len(self.selected_ids) - count
        text = ngettext(
            "%(summary)s; the other %(missing)s was not there any more",
            "%(summary)s; the other %(missing)s were not there any more",
            missing,
        )
        return text % {"summary": summary, "missing": number(missing)} if missing else summary

    @Action("change_deadletter")
    def requeue_all(self) -> str:
        self._confirm_all(REQUEUE_HOW_MANY, _("They run again with a fresh retry budget."), _("Yes, requeue them"))
        if "as_act" in self.request.POST:
            return self._start_act("retry", lane=self.lane)
        requeue = partial(self.queue.dlq.requeue_all, lane=self.lane)
        return self.with_lane(self._act_on_all(requeue, REQUEUED_OF))

    @Action("delete_deadletter")
    def discard_all(self) -> str:
        self._confirm_all(DISCARD_HOW_MANY, str(DISCARD_MEANING), _("Yes, discard them"))
        if "as_act" in self.request.POST:
            return self._start_act("discard")
        return self._act_on_all(self.queue.dlq.discard_all, DISCARDED_OF)

    @Action("delete_deadletter")
    def move_all(self) -> str:
        """Let workers move all that match to another queue of the project."""
        meaning = _(
            "The other queue gets them as new tasks with new ids. Tasks of a run, with dependencies, or with tasks that wait for "
            "them stay."
        )
        self._confirm_all(MOVE_HOW_MANY, meaning, "")
        if (to := self.request.POST.get("to", "")) not in self.other_queues:
            raise ValueError(_("There is no queue %(name)s.") % {"name": to})
        return self._start_act("move", to=to)

    def _confirm_all(self, how_many: StrPromise, meaning: str, yes: str) -> None:
        """Ask for confirmation of the action on all matching dead letters, with their number. Return only if the
        request contains the confirmation.
        """
        filters = self.filters
        if self.is_confirmed:
            return
        found = self.queue.dlq.matching(**filters)
        if not found.count:
            raise ValueError(NOTHING_MATCHES)
        some = _(
            "The count covers the %(looked)s newest dead letters. At most as many are changed, the oldest first; "
            "repeat the action for the others."
        )
        text = [
            _("All that match: %(filters)s") % {"filters": self.filters_in_words},
            "" if found.is_whole else some % {"looked": number(found.looked_at)},
            meaning,
        ]
        title = how_many % {"n": found.count, "count": number(found.count)}
        fields = {"total": str(found.count), "until": f"{found.until:.6f}"}
        is_discard = how_many is DISCARD_HOW_MANY
        is_move = how_many is MOVE_HOW_MANY
        raise Question(
            *(text, yes, title, fields),
            is_dangerous=is_discard,
            chooses_lane=not is_discard and not is_move,
            offers_act=True,
            is_act_only=is_move,
            act_choice=("to", _("Queue"), self.other_queues) if is_move else None,
        )

    def _start_act(self, kind: ActKind, **options: Any) -> str:
        pinned: dict[str, Any] = {**self.filters, "moved_until": self.posted_number("until")}
        return self.start_act(kind, **pinned, **options)

    def _act_on_all(self, act: Callable[..., int], done: StrPromise) -> str:
        """Act on at most `LETTERS_PER_REQUEST` dead letters, then ask whether to continue. Dead letters that were added
        after the confirmation are left out.
        """
        total, until = int(self.posted_number("total")), self.posted_number("until")
        before = int(self.posted_number("done", "0"))
        if before >= total:
            raise ValueError(NOTHING_MATCHES)
        limit = min(LETTERS_PER_REQUEST, total - before)
        filters = cast("dict[str, Any]", self.filters)
        pinned = {key: value for key, value in filters.items() if key != "older_than"}
        count = act(limit=limit, moved_until=until, **pinned)
        now = before + count
        summary = done % {"n": total, "done": number(now), "total": number(total)}
        if count < limit:  # another operator has moved the remaining dead letters
            return _("%(summary)s; the others were not there any more") % {"summary": summary}
        if now == total:
            return summary
        self.log(summary)
        fields = {"total": str(total), "until": f"{until:.6f}", "done": str(now)}
        raise Question([summary], _("Continue"), _("Go on?"), fields, progress=(now, total))


EDITABLE_PAYLOAD_MAX_BYTES = 200_000
"""Maximum bytes of a payload that can be edited in a browser."""


class PayloadEditor(AdminPage):
    """A page with the action ``edit``, which shows the payload of a task in a form. A second action uses the posted
    payload.
    """

    edits = False
    edited: str | None = None
    """The posted payload, which is shown again if it is refused."""
    problem = ""

    @property
    def subject(self) -> str:
        return self.key

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        response = super().post(request, **kwargs)
        self.refreshes = self.refreshes and not self.edits
        return self.get(request, **kwargs) if self.edits else response

    def payload_context(self, task: Task) -> dict[str, Any]:
        """Return the variables of the payload form, and the payload with secrets hidden."""
        shown = redact_value(task.payload)
        return {
            "payload": as_text(shown),
            "is_redacted": shown != task.payload,
            "edit": (editable_payload(task) if self.edited is None else self.edited) if self.edits else None,
            "problem": self.problem,
        }

    def use_payload(self, use: Callable[[str], T]) -> T:
        """Return the result of ``use`` for the posted payload. If the payload is refused, the page shows the form with
        the problem.
        """
        self.edits, self.edited = True, self.request.POST.get("payload", "")
        try:
            done = use(self.edited)
        except TaskNotFoundError:
            self.edits = False
            raise
        except (FairQueueError, ValueError) as error:
            self.problem = _("The payload can't be taken: %(error)s") % {"error": error}
            raise ValueError(self.problem) from error
        self.edits = False
        return done


class DeadLetterPage(PayloadEditor):
    """The page of one dead letter. Secrets in its payload are hidden.

    An operator with the permission to requeue the dead letter can edit the payload, and then sees the whole payload.
    This is written to the audit log.
    """

    name = "dead_letter"
    path = "dead-letters/<str:key>/"
    title = gettext_lazy("Dead letter")
    permission = "view_deadletter"
    list_name = "dead_letters"
    refreshes = False

    is_gone = False
    """Whether the action has moved the dead letter, so that this page no longer exists."""

    def report_failure(self, error: Exception) -> None:
        self.is_gone = isinstance(error, TaskNotFoundError)  # another operator has moved the dead letter

    def get_return_url(self) -> str:
        return self.url("dead_letters") if self.is_gone else super().get_return_url()

    def template_context(self) -> dict[str, Any]:
        entry = self.queue.dlq.get(self.key)
        task = entry.original_task
        return {
            "entry": entry,
            "task": task,
            "attempts": entry.retry_history[::-1],
            **self.payload_context(task),
            "is_editable": len(task.payload_bytes) <= EDITABLE_PAYLOAD_MAX_BYTES,
            "most_edited": EDITABLE_PAYLOAD_MAX_BYTES,
            "task_url": self.link("task", quote(task.task_id)),
            "same": self.url("dead_letters", fingerprint=entry.fingerprint),
            "back": self.url("dead_letters"),
            "here": self.url(self.name, quote(self.key)),
        }

    @Action("change_deadletter")
    def requeue(self) -> str:
        self.queue.dlq.requeue(self.key, lane=self.lane)
        self.is_gone = True
        return self.with_lane(_("Dead letter %(entry)s requeued") % {"entry": self.key})

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
        """Requeue the dead letter with the posted payload. The engine checks the payload first; a refused payload stays
        in the form.
        """
        self.use_payload(lambda payload: self.queue.dlq.requeue(self.key, payload.encode(), lane=self.lane))
        self.is_gone = True
        return self.with_lane(_("Dead letter %(entry)s requeued with another payload") % {"entry": self.key})

    @Action("delete_deadletter")
    def discard(self) -> str:
        text = _("The task of %(entry)s is canceled, and what waits for it. This can’t be undone.")
        title = _("Discard this dead letter?")
        self.ask_first(text % {"entry": self.key}, _("Yes, discard it"), title, is_dangerous=True)
        self.queue.dlq.discard(self.key)
        self.is_gone = True
        return _("Dead letter %(entry)s discarded") % {"entry": self.key}


def editable_payload(task: Task) -> str:
    """Return the payload as JSON text. Invisible characters (such as marks that reverse the text) are escaped."""
    if isinstance(task.payload, Undecodable):
        text = task.payload_bytes.decode("utf-8", "backslashreplace")
    else:
        text = json.dumps(task.payload, indent=2, ensure_ascii=False)
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
