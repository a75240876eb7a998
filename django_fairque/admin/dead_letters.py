"""Dead letters: what they died of, which they are, and another chance or the end for some or for all that match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.admin.utils import quote
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.engine.dlq_looking import COUNTED
from django_fairque.monitoring.redaction import redacted_text

from .bulk import Slice, done_to_all, done_to_some
from .dead_letter_filters import Wanted, fields, wanted
from .moments import moment
from .page import Action, Page

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.dlq_filter import Letter
    from django_fairque.engine.queue import FairQueue
    from django_fairque.engine.records import DLQGroup

MOST_SHOWN = 50
LOOK_AT = 1000
"""Of how many letters groups are made unless more are asked for: each is one read."""
ASKS_FIRST = ("discard", "requeue_all", "discard_all")


def _about_some(page: DeadLetters, request: HttpRequest) -> str:
    return ", ".join(page.chosen)


def _about_all(page: DeadLetters, request: HttpRequest) -> str:
    return page.wanted.words


class DeadLetters(Page):
    """Groups of the same error; with a filter for one of them, or asked for, the letters themselves."""

    name = "dead_letters"
    path = "dead-letters/"
    title: ClassVar[StrOrPromise] = gettext_lazy("Dead letters")
    permission = "view_deadletter"
    template = "admin/django_fairque/dead_letters.html"
    refreshes = False  # what one has ticked would be gone
    unfinished: Slice | None = None
    """What is left to do of "all that match"."""

    @property
    def wanted(self) -> Wanted:
        return wanted(self.request.GET)

    @property
    def chosen(self) -> list[str]:
        return list(dict.fromkeys(self.request.POST.getlist("entry")))

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """What can't be undone is asked about first, with how many it concerns; then done in slices, one a request."""
        action = self.actions.get(request.POST.get("action", ""))
        asks = request.POST.get("action") in ASKS_FIRST and request.POST.get("confirm") != "yes"
        if asks and action is not None and self.may(action.permission):
            return self.get(request, **kwargs)
        response = super().post(request, **kwargs)
        return response if self.unfinished is None else self.get(request, **kwargs)

    def facts(self, queue: FairQueue) -> dict[str, Any]:
        known = self.wanted
        facts = {
            "counts": [
                {"kind": kind, "count": count, "url": self.url(self.name, failure_type=kind, show="letters")}
                for kind, count in queue.dlq.counts().items()
            ],
            "fields": fields(known.written),
            "problem": known.problem,
            "asks": None,
            "unfinished": self.unfinished,
            "words": known.words,
            "here": self.url(self.name),
            "all_letters": self.url(self.name, show="letters"),
        }
        if known.problem or self.unfinished is not None:
            return facts
        if self.request.method == "POST":
            return {**facts, **self._question(queue, known)}
        return {**facts, **(self._letters(queue, known) if self._shows_letters(known) else self._groups(queue, known))}

    def _shows_letters(self, known: Wanted) -> bool:
        return self.request.GET.get("show") == "letters" or "fingerprint" in known.written

    def _groups(self, queue: FairQueue, known: Wanted) -> dict[str, Any]:
        look_at = COUNTED if self.request.GET.get("look") == "more" else LOOK_AT
        found = queue.dlq.groups(look_at, **known.filters)
        return {
            "groups": [self._group(group, known) for group in found.groups],
            "looked_at": found.looked_at,
            "is_whole": found.is_whole,
            "more": "" if look_at == COUNTED else self.url(self.name, look="more", **known.written),
        }

    def _group(self, group: DLQGroup, known: Wanted) -> dict[str, Any]:
        return {
            "group": group,
            "url": self.url(self.name, **{**known.written, "fingerprint": group.fingerprint}),
            "oldest": moment(group.oldest),
            "newest": moment(group.newest),
        }

    def _letters(self, queue: FairQueue, known: Wanted) -> dict[str, Any]:
        cursor = self.request.GET.get("cursor") or None
        try:
            page = queue.dlq.letters(MOST_SHOWN, cursor, **known.filters)
        except ValueError as error:
            return {"problem": str(error)}
        query = {**known.written, "show": "letters"}
        return {
            "letters": [self._letter(letter) for letter in page.items],
            "next": page.cursor and self.url(self.name, **query, cursor=page.cursor),
            "first": cursor and self.url(self.name, **query),
        }

    def _letter(self, letter: Letter) -> dict[str, Any]:
        return {
            "letter": letter,
            "url": self.url("dead_letter", quote(letter.entry_id)),
            "died": moment(letter.moved_at),
            "error": redacted_text(letter.reason).strip().partition("\n")[0][:200],
        }

    def _question(self, queue: FairQueue, known: Wanted) -> dict[str, Any]:
        """What is about to be done, and to how many."""
        action = self.request.POST["action"]
        if not action.endswith("_all"):
            return {"asks": {"action": action, "count": len(self.chosen), "entries": self.chosen}}
        found = queue.dlq.matching(**known.filters)
        return {
            "asks": {
                "action": action,
                "count": found.count,
                "until": f"{found.until:.6f}",
                "looked_at": None if found.is_whole else found.looked_at,
            }
        }

    def _requeue(self, queue: FairQueue, request: HttpRequest) -> str:
        return done_to_some(queue.dlq.requeue_many, self.chosen, _("%(count)s requeued"))

    def _discard(self, queue: FairQueue, request: HttpRequest) -> str:
        return done_to_some(queue.dlq.discard_many, self.chosen, _("%(count)s discarded"))

    def _requeue_all(self, queue: FairQueue, request: HttpRequest) -> str:
        return self._all(queue.dlq.requeue_all, request, _("%(done)s of %(total)s dead letters requeued"))

    def _discard_all(self, queue: FairQueue, request: HttpRequest) -> str:
        return self._all(queue.dlq.discard_all, request, _("%(done)s of %(total)s dead letters discarded"))

    def _all(self, act: Any, request: HttpRequest, sentence: str) -> str:
        filters = self.wanted.checked
        done = done_to_all(act, filters, Slice.read(request.POST))
        self.unfinished = done if done.is_unfinished else None
        return done.say(sentence)

    actions: ClassVar[dict[str, Action]] = {
        "requeue": Action("change_deadletter", _requeue, _about_some),
        "discard": Action("delete_deadletter", _discard, _about_some),
        "requeue_all": Action("change_deadletter", _requeue_all, _about_all),
        "discard_all": Action("delete_deadletter", _discard_all, _about_all),
    }
