"""Which dead letters a page is about: what its form and its links say in the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from django.utils.translation import gettext as _

from django_fairque.engine.dead_letters.filters import Filter, Filters
from django_fairque.engine.model.records import FailureType
from django_fairque.monitoring.formatting import read_age

if TYPE_CHECKING:
    from django.http import QueryDict

TEXTS = ("failure_type", "user_id", "name", "fingerprint")
AGES = ("older_than", "newer_than")


@dataclass(frozen=True)
class Wanted:
    """``written`` is the query as it came, ``filters`` what the engine is asked for, ``problem`` why it is not asked."""

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
    def words(self) -> str:
        """For the audit trail, and before something is done."""
        return ", ".join(f"{key} {value}" for key, value in self.written.items()) or _("every one of them")


def wanted(query: QueryDict) -> Wanted:
    written = {key: text for key in (*TEXTS, *AGES) if (text := _text(query, key))}
    found: dict[str, Any] = {}
    try:
        for key, text in written.items():
            found[key] = _age(text) if key in AGES else text
        Filter.create(cast("Filters", found))
    except ValueError as error:
        return Wanted(written, {}, f"{key}: {error}")
    return Wanted(written, cast("Filters", found))


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
            "hint": _("90s, 10m, 2h, 7d") if key in AGES else "",
        }
        for key, label in labels.items()
    ]
