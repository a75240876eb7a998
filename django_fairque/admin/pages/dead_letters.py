"""Dead letters: what they died of, which they are, and another chance or the end for some or for all that match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.admin.utils import quote
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.bulk import (
    Sentences,
    Slice,
    asked_about,
    discard_how_many,
    done_to_all,
    done_to_some,
    gone_for_good,
    requeue_how_many,
)
from django_fairque.admin.confirming import ConfirmingPage, Question, ask_first, is_confirmed
from django_fairque.admin.dead_letter_filters import Wanted, fields, wanted
from django_fairque.admin.moments import moment
from django_fairque.admin.pages.base import Action
from django_fairque.admin.posted import posted_list
from django_fairque.engine.dead_letters.queries import COUNTED
from django_fairque.monitoring.redaction import redacted_text

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.dead_letters.filters import Letter
    from django_fairque.engine.model.records import DLQGroup
    from django_fairque.engine.queue.queue import FairQueue

MOST_SHOWN = 50
LOOK_AT = 1000
"""Of how many letters groups are made unless more are asked for: each is one read."""


def _about_some(page: DeadLetters, request: HttpRequest) -> str:
    return ", ".join(page.chosen)


def _about_all(page: DeadLetters, request: HttpRequest) -> str:
    return page.wanted.words


class DeadLetters(ConfirmingPage):
    """Groups of the same error; with a filter for one of them, or asked for, the letters themselves."""

    name = "dead_letters"
    path = "dead-letters/"
    title: ClassVar[StrOrPromise] = gettext_lazy("Dead letters")
    permission = "view_deadletter"
    template = "admin/django_fairque/dead_letters.html"
    refreshes = False  # what one has ticked would be gone

    @property
    def wanted(self) -> Wanted:
        return wanted(self.request.GET)

    @property
    def chosen(self) -> list[str]:
        return posted_list(self.request, "entry")

    def back_to(self, request: HttpRequest) -> str:
        """To the groups, when it was asked for there: their forms post to the address of one of them."""
        if request.POST.get("from") != "groups":
            return super().back_to(request)
        return self.url(self.name, **{key: text for key, text in self.wanted.written.items() if key != "fingerprint"})

    def facts(self, queue: FairQueue) -> dict[str, Any]:
        known = self.wanted
        facts = {
            "counts": [
                {"kind": kind, "count": count, "url": self.url(self.name, failure_type=kind, show="letters")}
                for kind, count in queue.dlq.counts().items()
            ],
            "fields": fields(known.written),
            "problem": known.problem,
            "here": self.url(self.name),
            "all_letters": self.url(self.name, show="letters"),
        }
        if known.problem:
            return facts
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

    def _requeue(self, queue: FairQueue, request: HttpRequest) -> str:
        return done_to_some(queue.dlq.requeue_many, self.chosen, _("%(count)s requeued"))

    def _discard(self, queue: FairQueue, request: HttpRequest) -> str:
        if self.chosen:
            ask_first(request, gone_for_good(), _("Yes, discard them"), title=discard_how_many(len(self.chosen)))
        return done_to_some(queue.dlq.discard_many, self.chosen, _("%(count)s discarded"))

    def _requeue_all(self, queue: FairQueue, request: HttpRequest) -> str:
        sentences = Sentences(
            requeue_how_many,
            _("They run again with a fresh retry budget."),
            _("Yes, requeue them"),
            _("%(done)s of %(total)s dead letters requeued"),
        )
        return self._all(queue, queue.dlq.requeue_all, request, sentences)

    def _discard_all(self, queue: FairQueue, request: HttpRequest) -> str:
        sentences = Sentences(
            discard_how_many,
            gone_for_good(),
            _("Yes, discard them"),
            _("%(done)s of %(total)s dead letters discarded"),
        )
        return self._all(queue, queue.dlq.discard_all, request, sentences)

    def _all(self, queue: FairQueue, act: Any, request: HttpRequest, sentences: Sentences) -> str:
        """A slice of all that match, once their count was confirmed; then the question whether to go on."""
        known = self.wanted
        if not is_confirmed(request):
            raise self._from_here(request, asked_about(queue.dlq.matching(**known.checked), known.words, sentences))
        done = done_to_all(act, known.checked, Slice.read(request.POST))
        sentence = done.say(sentences.done)
        if not done.is_unfinished:
            return sentence
        self.log(known.words, sentence)
        raise self._from_here(request, done.question(sentence))

    @staticmethod
    def _from_here(request: HttpRequest, question: Question) -> Question:
        """Its answer leads back to where it was asked."""
        if came := request.POST.get("from"):
            question.fields = {**question.fields, "from": came}
        return question

    actions: ClassVar[dict[str, Action]] = {
        "requeue": Action("change_deadletter", _requeue, _about_some),
        "discard": Action("delete_deadletter", _discard, _about_some),
        "requeue_all": Action("change_deadletter", _requeue_all, _about_all),
        "discard_all": Action("delete_deadletter", _discard_all, _about_all),
    }
