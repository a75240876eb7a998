"""Limits by key: the page shows limits that are closed or at which tasks wait. Operators can close limits and open them
again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import Action, AdminPage
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.monitoring.formatting import number, read_age

if TYPE_CHECKING:
    from django_fairque.engine.limits.limits import LimitQueue, LimitStats
    from django_fairque.engine.model.limits import TaskLimit

LIMITS_SHOWN = 100
"""Maximum number of limits that are shown."""


class LimitsPage(AdminPage):
    """A table of limits, sorted by the number of waiting tasks; with ``?limit=`` the page of one limit.

    The permissions to see and to change users apply here too: limits decide which tasks start, and their keys may name users.
    """

    name = "limits"
    title = gettext_lazy("Limits")
    permission = "view_user"
    subject_field = "limit"

    def template_context(self) -> dict[str, Any]:
        wanted, user = self.request.GET.get("limit", ""), self.request.GET.get("user", "")
        found: list[LimitStats] = []
        try:
            found = [self.queue.limit(wanted, user or None).stats()] if wanted else self.queue.limits(LIMITS_SHOWN)
        except TaskValidationError as error:
            return {"wanted": wanted, "problem": str(error), "all": self.url(self.name)}
        return {
            "table": [
                (stats, [("ran", 0, stats.running)], describe_values(stats), self._url(stats)) for stats in found
            ],
            "is_cut": len(found) == LIMITS_SHOWN,
            "wanted": wanted,
            "all": self.url(self.name),
        }

    def _url(self, stats: LimitStats) -> str:
        return self.url(self.name, limit=stats.key, **({} if stats.user is None else {"user": stats.user}))

    def _posted_limit(self) -> LimitQueue:
        (user,) = self.posted_list("user") or ("",)
        return self.queue.limit(self.subject, user or None)

    @Action("change_user")
    def close(self) -> str:
        after = self.request.POST.get("close_for", "").strip()
        until = timedelta(seconds=read_age(after)) if after else None
        limit = self._posted_limit()
        text = _("No task of limit %(limit)s starts on any worker until it opens; running tasks go on.")
        self.ask_first(text % {"limit": limit.key}, _("Yes, close it"))
        limit.close(until)
        return _("Limit %(limit)s is closed.") % {"limit": limit.key}

    @Action("change_user")
    def open(self) -> str:
        limit = self._posted_limit()
        limit.open()
        return _("Limit %(limit)s is open.") % {"limit": limit.key}


def describe_values(limit: LimitStats | TaskLimit) -> str:
    """Return the values of a limit as text; empty if it has none."""
    parts = [_("at most %(value)s at once") % {"value": number(limit.at_once)}] if limit.at_once is not None else []
    if limit.rate is not None:
        parts.append(_("rate %(value)s") % {"value": limit.rate})
        parts += [_("burst %(value)s") % {"value": number(limit.burst)}] if limit.burst and limit.burst > 1 else []
    return ", ".join(parts)
