"""The page that lists dead letters: grouped by error, or one by one; it requeues and discards them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django.contrib.admin.utils import quote
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin.pages.base import (
    Action,
    ConfirmingPage,
    Question,
    ask_first,
    is_confirmed,
    moment,
    posted_list,
)
from django_fairque.engine.dead_letters.dead_letters import MAX_DEAD_LETTERS_COUNTED
from django_fairque.engine.dead_letters.letters import Filter, Filters
from django_fairque.engine.model.records import FailureType
from django_fairque.monitoring.formatting import number, read_age
from django_fairque.monitoring.redaction import redacted_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.http import HttpRequest, QueryDict
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.dead_letters.letters import DLQGroup, DLQMatching, Letter
    from django_fairque.engine.queue.queue import FairQueue

TEXT_FILTERS = ("failure_type", "user_id", "name", "fingerprint")
AGE_FILTERS = ("older_than", "newer_than")


@dataclass(frozen=True)
class LetterQuery:
    """``written`` is the query as it came, ``filters`` what is passed to the engine, ``problem`` why nothing is."""

    written: dict[str, str]
    filters: Filters
    problem: str = ""

    @property
    def checked(self) -> Filters:
        """The filters. `ValueError` if there is something wrong with them: nothing may be done to "all of them" then."""
        if self.problem:
            raise ValueError(self.problem)
        return self.filters

    @property
    def description(self) -> str:
        """For the audit trail, and before something is done."""
        return ", ".join(f"{key} {value}" for key, value in self.written.items()) or _("every one of them")


def letter_query(query: QueryDict) -> LetterQuery:
    written = {key: text for key in (*TEXT_FILTERS, *AGE_FILTERS) if (text := _text(query, key))}
    found: dict[str, Any] = {}
    try:
        for key, text in written.items():
            found[key] = _age(text) if key in AGE_FILTERS else text
        Filter.create(cast("Filters", found))
    except ValueError as error:
        return LetterQuery(written, {}, f"{key}: {error}")
    return LetterQuery(written, cast("Filters", found))


def _age(text: str) -> float:
    try:
        return read_age(text)
    except ValueError:
        sentence = _("expected an age such as 90s, 10m, 2h or 7d, got %(got)s")
        raise ValueError(sentence % {"got": repr(text[:80])}) from None


def _text(query: QueryDict, key: str) -> str:
    """What somebody typed; a user's id and a task's name are taken as they are, white space and all."""
    text = query.get(key, "")
    return text if key in ("user_id", "name") else text.strip()


def fields(written: dict[str, str]) -> list[dict[str, Any]]:
    """The form, with what was written."""
    labels = {
        "failure_type": _("Type"),
        "user_id": _("User"),
        "name": _("Task"),
        "fingerprint": _("Fingerprint"),
        "older_than": _("Older than"),
        "newer_than": _("Newer than"),
    }
    return [
        {
            "name": key,
            "label": label,
            "value": written.get(key, ""),
            "choices": [kind.value for kind in FailureType] if key == "failure_type" else [],
            "hint": _("90s, 10m, 2h, 7d") if key in AGE_FILTERS else "",
        }
        for key, label in labels.items()
    ]


LETTERS_PER_REQUEST = 1000
"""Letters of one request; the engine moves them a hundred at a time."""


@dataclass(frozen=True)
class BulkProgress:
    """How far it has come with the ``total`` that was confirmed: all that matched and had died ``until`` then."""

    action: str
    total: int
    until: float
    done: int = 0
    is_over: bool = False
    """There were fewer left than were counted: somebody else has moved them."""

    @classmethod
    def read(cls, posted: QueryDict) -> BulkProgress:
        """What the form of a confirmation, or of the slice before, sends."""
        try:
            made = cls(
                action=str(posted["action"]),
                total=int(str(posted["total"])),
                until=float(str(posted["until"])),
                done=int(posted.get("done", "0")),
            )
        except (KeyError, ValueError):
            raise ValueError(_("The form was not complete: go back and begin again. Nothing was changed.")) from None
        if not 0 <= made.done < made.total:
            raise ValueError(_("There is nothing to do: no dead letter matches. Nothing was changed."))
        return made

    @property
    def is_unfinished(self) -> bool:
        return not self.is_over and self.done < self.total

    def question(self, sentence: str) -> Question:
        """Whether to go on."""
        fields = {"total": str(self.total), "until": f"{self.until:.6f}", "done": str(self.done)}
        return Question(sentence, _("Continue"), fields, title=_("Go on?"), progress=(self.done, self.total))

    def summary(self, sentence: str) -> str:
        summary = sentence % {"done": number(self.done), "total": number(self.total)}
        if self.is_over and self.done < self.total:
            return _("%(summary)s; the others were not there any more") % {"summary": summary}
        return summary


@dataclass(frozen=True)
class BulkTexts:
    """The texts of an action on all that match: the question, its meaning, the button, and the result."""

    how_many: Callable[[int], str]
    meaning: str
    yes: str
    done: str


def requeue_how_many(count: int) -> str:
    text = ngettext("Requeue %(count)s dead letter?", "Requeue %(count)s dead letters?", count)
    return text % {"count": number(count)}


def discard_how_many(count: int) -> str:
    text = ngettext("Discard %(count)s dead letter?", "Discard %(count)s dead letters?", count)
    return text % {"count": number(count)}


def discard_meaning() -> str:
    return _("Their tasks are canceled, and what waits for them. This can’t be undone.")


def bulk_question(found: DLQMatching, filters: str, sentences: BulkTexts) -> Question:
    """What is about to be done to all that match, and to how many."""
    if not found.count:
        raise ValueError(_("There is nothing to do: no dead letter matches. Nothing was changed."))
    some = _(
        "The count covers the %(looked)s oldest dead letters. Newer ones are not changed; repeat the action for them."
    )
    text = [
        _("All that match: %(filters)s") % {"filters": filters},
        "" if found.is_whole else some % {"looked": number(found.looked_at)},
        sentences.meaning,
    ]
    fields = {"total": str(found.count), "until": f"{found.until:.6f}"}
    return Question(text, sentences.yes, fields, title=sentences.how_many(found.count))


def act_on_matching(act: Callable[..., int], filters: Filters, now: BulkProgress) -> BulkProgress:
    """One more slice; what died after the confirmation is left alone."""
    pinned = cast("dict[str, Any]", {key: value for key, value in filters.items() if key != "older_than"})
    limit = min(LETTERS_PER_REQUEST, now.total - now.done)
    count = act(limit=limit, moved_until=now.until, **pinned)
    return replace(now, done=now.done + count, is_over=count < limit)


def act_on_selected(act: Callable[[Sequence[str]], int], entries: Sequence[str], sentence: str) -> str:
    """Act on the selected dead letters; the message counts those that are no longer there."""
    if not entries:
        raise ValueError(_("Select at least one dead letter. Nothing was changed."))
    count = act(entries)
    if not count:
        raise ValueError(_("None of these dead letters is there any more. Nothing was changed."))
    summary = sentence % {"count": number(count)}
    missing = len(entries) - count
    if missing:
        text = ngettext(
            "%(summary)s; the other %(missing)s was not there any more",
            "%(summary)s; the other %(missing)s were not there any more",
            missing,
        )
        return text % {"summary": summary, "missing": number(missing)}
    return summary


LETTERS_PER_PAGE = 50
LETTERS_GROUPED = 1000
"""How many letters are grouped by default; each costs one read."""


def _selected_ids(page: DeadLettersPage, request: HttpRequest) -> str:
    return ", ".join(page.selected_ids)


def _filters_in_words(page: DeadLettersPage, request: HttpRequest) -> str:
    return page.letter_query.description


class DeadLettersPage(ConfirmingPage):
    """Shows groups of equal errors (`_groups`, dead_letters_groups.html). With ``?show=letters`` or a fingerprint it shows single
    letters (`_letters`, dead_letters_list.html).
    """

    name = "dead_letters"
    path = "dead-letters/"
    title: ClassVar[StrOrPromise] = gettext_lazy("Dead letters")
    permission = "view_deadletter"
    template = "admin/django_fairque/dead_letters.html"
    refreshes = False  # a refresh would clear the selection

    @property
    def letter_query(self) -> LetterQuery:
        return letter_query(self.request.GET)

    @property
    def selected_ids(self) -> list[str]:
        return posted_list(self.request, "entry")

    def back_to(self, request: HttpRequest) -> str:
        """To the groups, if the action was started there: their forms post to the address of one group."""
        if request.POST.get("from") != "groups":
            return super().back_to(request)
        return self.url(
            self.name, **{key: text for key, text in self.letter_query.written.items() if key != "fingerprint"}
        )

    def template_context(self, queue: FairQueue) -> dict[str, Any]:
        query = self.letter_query
        facts = {
            "counts": [
                {"kind": kind, "count": count, "url": self.url(self.name, failure_type=kind, show="letters")}
                for kind, count in queue.dlq.counts().items()
            ],
            "fields": fields(query.written),
            "problem": query.problem,
            "here": self.url(self.name),
            "all_letters": self.url(self.name, show="letters"),
        }
        if query.problem:
            return facts
        return {**facts, **(self._letters(queue, query) if self._shows_letters(query) else self._groups(queue, query))}

    def _shows_letters(self, query: LetterQuery) -> bool:
        return self.request.GET.get("show") == "letters" or "fingerprint" in query.written

    def _groups(self, queue: FairQueue, query: LetterQuery) -> dict[str, Any]:
        look_at = MAX_DEAD_LETTERS_COUNTED if self.request.GET.get("look") == "more" else LETTERS_GROUPED
        found = queue.dlq.groups(look_at, **query.filters)
        return {
            "groups": [self._group(group, query) for group in found.groups],
            "looked_at": found.looked_at,
            "most": number(MAX_DEAD_LETTERS_COUNTED),
            "is_whole": found.is_whole,
            "more": "" if look_at == MAX_DEAD_LETTERS_COUNTED else self.url(self.name, look="more", **query.written),
        }

    def _group(self, group: DLQGroup, query: LetterQuery) -> dict[str, Any]:
        return {
            "group": group,
            "url": self.url(self.name, **{**query.written, "fingerprint": group.fingerprint}),
            "oldest": moment(group.oldest),
            "newest": moment(group.newest),
        }

    def _letters(self, queue: FairQueue, query: LetterQuery) -> dict[str, Any]:
        cursor = self.request.GET.get("cursor") or None
        try:
            page = queue.dlq.letters(LETTERS_PER_PAGE, cursor, **query.filters)
        except ValueError as error:
            return {"problem": str(error)}
        parameters = {**query.written, "show": "letters"}
        return {
            "letters": [self._letter(letter) for letter in page.items],
            "next": page.cursor and self.url(self.name, **parameters, cursor=page.cursor),
            "first": cursor and self.url(self.name, **parameters),
        }

    def _letter(self, letter: Letter) -> dict[str, Any]:
        return {
            "letter": letter,
            "url": self.url("dead_letter", quote(letter.entry_id)),
            "died": moment(letter.moved_at),
            "error": redacted_text(letter.reason).strip().partition("\n")[0][:200],
        }

    def _requeue(self, queue: FairQueue, request: HttpRequest) -> str:
        return act_on_selected(queue.dlq.requeue_many, self.selected_ids, _("%(count)s requeued"))

    def _discard(self, queue: FairQueue, request: HttpRequest) -> str:
        if self.selected_ids:
            ask_first(
                request, discard_meaning(), _("Yes, discard them"), title=discard_how_many(len(self.selected_ids))
            )
        return act_on_selected(queue.dlq.discard_many, self.selected_ids, _("%(count)s discarded"))

    def _requeue_all(self, queue: FairQueue, request: HttpRequest) -> str:
        sentences = BulkTexts(
            requeue_how_many,
            _("They run again with a fresh retry budget."),
            _("Yes, requeue them"),
            _("%(done)s of %(total)s dead letters requeued"),
        )
        return self._act_on_all_matching(queue, queue.dlq.requeue_all, request, sentences)

    def _discard_all(self, queue: FairQueue, request: HttpRequest) -> str:
        sentences = BulkTexts(
            discard_how_many,
            discard_meaning(),
            _("Yes, discard them"),
            _("%(done)s of %(total)s dead letters discarded"),
        )
        return self._act_on_all_matching(queue, queue.dlq.discard_all, request, sentences)

    def _act_on_all_matching(self, queue: FairQueue, act: Any, request: HttpRequest, sentences: BulkTexts) -> str:
        """A slice of all that match, once their count was confirmed; then the question whether to go on."""
        query = self.letter_query
        if not is_confirmed(request):
            raise self._from_here(
                request, bulk_question(queue.dlq.matching(**query.checked), query.description, sentences)
            )
        done = act_on_matching(act, query.checked, BulkProgress.read(request.POST))
        sentence = done.summary(sentences.done)
        if not done.is_unfinished:
            return sentence
        self.log(query.description, sentence)
        raise self._from_here(request, done.question(sentence))

    @staticmethod
    def _from_here(request: HttpRequest, question: Question) -> Question:
        """After its answer the user returns to the page with the question."""
        if came := request.POST.get("from"):
            question.fields = {**question.fields, "from": came}
        return question

    actions: ClassVar[dict[str, Action]] = {
        "requeue": Action("change_deadletter", _requeue, _selected_ids),
        "discard": Action("delete_deadletter", _discard, _selected_ids),
        "requeue_all": Action("change_deadletter", _requeue_all, _filters_in_words),
        "discard_all": Action("delete_deadletter", _discard_all, _filters_in_words),
    }
