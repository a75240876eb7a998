"""Users: the fairness page. Who got how much, who waits, what holds for each; and changing that."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin import purging
from django_fairque.admin.confirming import Question
from django_fairque.admin.fairness import remarks, rows, waiting
from django_fairque.admin.forms import FormPage
from django_fairque.admin.pages.base import Action, NotHereError
from django_fairque.admin.pages.limit_forms import LimitsForm
from django_fairque.admin.posted import posted
from django_fairque.engine.inspection.pages import Page
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.monitoring.formatting import duration, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.http import HttpRequest
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.users.organization_facade import OrganizationQueue

PER_PAGE = 50
LOOKED_AT = 100
"""Users among whom members of an organization are looked for in one read."""
LOOKS = 10
"""Reads for one page of members, at most: an organization's record does not name them."""
SUSPECTS = 10
"""Users of other pages, at most, who are looked at because much of what waits is theirs."""


def _members(organization: OrganizationQueue, cursor: str | None) -> Page[str]:
    """Members among the next users of the queue: about a page of them, or as many as there are among a thousand."""
    found: list[str] = []
    for _look in range(LOOKS):
        page = organization.members(cursor, LOOKED_AT)
        found += page.items
        cursor = page.cursor
        if cursor is None or len(found) >= PER_PAGE:
            break
    return Page(found, cursor, page.missing_shards)


def _purged(user_id: str, count: int) -> str:
    sentence = ngettext(
        "%(count)d task of user %(user)s was canceled.", "%(count)d tasks of user %(user)s were canceled.", count
    )
    return sentence % {"count": count, "user": user_id}


def _whether_to_purge(user_id: str, count: int, *before: str) -> Question:
    sentence = ngettext(
        "%(count)d task that user %(user)s has waiting will be canceled. It can't be brought back.",
        "All %(count)d tasks that user %(user)s has waiting will be canceled. They can't be brought back.",
        count,
    )
    text = [*before, sentence % {"count": count, "user": user_id}, purging.at_most(count)]
    yes, title = (_("Continue"), _("Go on?")) if before else (_("Cancel what waits"), "")
    return Question(text, yes, {"user": user_id}, title=title)


def _user_of(page: Users, request: HttpRequest) -> str:
    return posted(request, "user")


class Users(FormPage):
    """A table of users, those with something to do first. ``?organization=`` limits it to members; ``?user=`` shows one user with
    its settings.
    """

    name = "users"
    path = "users/"
    title: ClassVar[StrOrPromise] = gettext_lazy("Users")
    permission = "view_user"
    template = "admin/django_fairque/users.html"

    def facts(self, queue: FairQueue) -> dict[str, Any]:
        stats = queue.get_stats()
        common = {
            "wait_p50": duration(stats.wait.p50),
            "wait_p95": duration(stats.wait.p95),
            "kept": duration(queue.config.user_ttl),
        }
        wanted = self.request.GET.get("user", "")
        organization = "" if wanted else self.request.GET.get("organization", "")
        return {
            **common,
            **(self._one(queue, wanted) if wanted else self._table(queue, organization)),
            "wanted": wanted,
            "organization": organization,
            "organization_url": self.url("organizations", organization=organization) if organization else "",
            "all": self.url(self.name),
        }

    def _table(self, queue: FairQueue, organization: str) -> dict[str, Any]:
        cursor = self.request.GET.get("cursor") or None
        try:
            members = queue.organization(organization) if organization else None
        except TaskValidationError as error:
            return {"problem": str(error)}
        try:
            page = _members(members, cursor) if members else queue.users(cursor, PER_PAGE, busy_first=True)
        except TaskValidationError:
            raise NotHereError(_("There is no such page of users: this is the first.")) from None
        others = [] if cursor or organization else self._suspects(queue, page.items)
        stats = queue.user_stats([*page.items, *others])
        table = rows(stats[: len(page.items)], stats[len(page.items) :])
        of_organization = {"organization": organization} if organization else {}
        return {
            "table": [(row, self.url(self.name, user=row.user_id)) for row in table],
            "remarks": remarks(table),
            "next": self.url(self.name, cursor=page.cursor, **of_organization) if page.cursor else "",
            "first": self.url(self.name, **of_organization) if cursor else "",
            "looked_at": number(LOOKED_AT * LOOKS),
        }

    @staticmethod
    def _suspects(queue: FairQueue, listed: Sequence[str]) -> list[str]:
        """Who may be noisy and is not on the page: there can be any number of pages, and a noisy user on any of them."""
        known = set(listed)
        return [user_id for user_id in queue.busiest_users() if user_id not in known][:SUSPECTS]

    def _one(self, queue: FairQueue, user_id: str) -> dict[str, Any]:
        self.hold()
        try:
            stats = queue.user(user_id).stats()
        except TaskValidationError as error:
            return {"problem": str(error)}
        (row,) = rows([stats])
        is_set = row.limits or stats.organization or stats.paused or stats.weight != 1
        is_known = bool(stats.sizes.total or stats.started or is_set)
        return {"row": row, "is_recorded": is_known, "form": self.form or LimitsForm.of(stats)}

    def pause(self, queue: FairQueue, request: HttpRequest) -> str:
        user_id = posted(request, "user")
        queue.user(user_id).pause()
        return _("User %(user)s is paused: none of its tasks start; what runs goes on.") % {"user": user_id}

    def resume(self, queue: FairQueue, request: HttpRequest) -> str:
        user_id = posted(request, "user")
        queue.user(user_id).resume()
        return _("User %(user)s is resumed.") % {"user": user_id}

    def limits(self, queue: FairQueue, request: HttpRequest) -> str:
        user_id = posted(request, "user")
        changed = LimitsForm(request.POST).apply(queue.user(user_id))
        if not changed:
            return _("Nothing was changed for user %(user)s.") % {"user": user_id}
        return _("Changed for user %(user)s: %(what)s.") % {"user": user_id, "what": ", ".join(changed)}

    def purge(self, queue: FairQueue, request: HttpRequest) -> str:
        user_id = posted(request, "user")
        user = queue.user(user_id)

        def left() -> int:
            return waiting(user.stats())

        if not left():
            raise ValueError(_("User %(user)s has nothing waiting, so there is nothing to purge.") % {"user": user_id})
        told = partial(_purged, user_id), partial(_whether_to_purge, user_id)
        return purging.purge(self, user_id, queue, user.purge, left, *told)

    actions: ClassVar[dict[str, Action]] = {
        "pause": Action("change_user", pause, _user_of),
        "resume": Action("change_user", resume, _user_of),
        "limits": Action("change_user", limits, _user_of),
        "purge": Action("delete_user", purge, _user_of),
    }
