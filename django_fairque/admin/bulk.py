"""Something done to many dead letters: to those that were ticked, or, slice by slice, to all that match."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_fairque.monitoring.formatting import number

from .confirming import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.http import QueryDict

    from django_fairque.engine.dead_letters.filters import Filters
    from django_fairque.engine.model.records import DLQMatching

AT_ONCE = 1000
"""Letters of one request; the engine moves them a hundred at a time."""


@dataclass(frozen=True)
class Slice:
    """How far it has come with the ``total`` that was confirmed: all that matched and had died ``until`` then."""

    action: str
    total: int
    until: float
    done: int = 0
    is_over: bool = False
    """There were fewer left than were counted: somebody else has moved them."""

    @classmethod
    def read(cls, posted: QueryDict) -> Slice:
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

    def say(self, sentence: str) -> str:
        said = sentence % {"done": number(self.done), "total": number(self.total)}
        if self.is_over and self.done < self.total:
            return _("%(said)s; the others were not there any more") % {"said": said}
        return said


@dataclass(frozen=True)
class Sentences:
    """What is said of an action on all that match: what is asked, what it means, the button, and what was done."""

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


def gone_for_good() -> str:
    return _("Their tasks are canceled, and what waits for them. This can’t be undone.")


def asked_about(found: DLQMatching, filters: str, sentences: Sentences) -> Question:
    """What is about to be done to all that match, and to how many."""
    if not found.count:
        raise ValueError(_("There is nothing to do: no dead letter matches. Nothing was changed."))
    some = _("So many of the %(looked)s oldest match; there are more letters, which are left for the next time.")
    text = [
        _("All that match: %(filters)s") % {"filters": filters},
        "" if found.is_whole else some % {"looked": number(found.looked_at)},
        sentences.meaning,
    ]
    fields = {"total": str(found.count), "until": f"{found.until:.6f}"}
    return Question(text, sentences.yes, fields, title=sentences.how_many(found.count))


def done_to_all(act: Callable[..., int], filters: Filters, now: Slice) -> Slice:
    """One more slice; what died after the confirmation is left alone."""
    pinned = cast("dict[str, Any]", {key: value for key, value in filters.items() if key != "older_than"})
    limit = min(AT_ONCE, now.total - now.done)
    count = act(limit=limit, moved_until=now.until, **pinned)
    return replace(now, done=now.done + count, is_over=count < limit)


def done_to_some(act: Callable[[Sequence[str]], int], entries: Sequence[str], sentence: str) -> str:
    """To the letters that were ticked; those that have gone meanwhile are told."""
    if not entries:
        raise ValueError(_("Tick at least one dead letter. Nothing was changed."))
    count = act(entries)
    if not count:
        raise ValueError(_("None of these dead letters is there any more. Nothing was changed."))
    said = sentence % {"count": number(count)}
    missing = len(entries) - count
    if missing:
        text = ngettext(
            "%(said)s; the other %(missing)s was not there any more",
            "%(said)s; the other %(missing)s were not there any more",
            missing,
        )
        return text % {"said": said, "missing": number(missing)}
    return said
