"""Organizations: how many members each has, what runs, what holds for all of them together; and changing that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import Action, FormPage, InvalidForm, posted
from django_fairque.admin.pages.limit_forms import OrganizationForm
from django_fairque.engine.model.errors import ShardsAwayError, TaskValidationError
from django_fairque.monitoring.formatting import number

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.queue.queue import FairQueue

ORGANIZATIONS_PER_PAGE = 50


def _organization_of(page: OrganizationsPage, request: HttpRequest) -> str:
    return posted(request, "organization")


def _shards_away(step: Callable[[], None]) -> ShardsAwayError | None:
    """The shards that could not be changed."""
    try:
        step()
    except ShardsAwayError as error:
        return error
    return None


class OrganizationsPage(FormPage):
    """A table of organizations by name; or, with ``?organization=``, one of them with its settings.

    Who may see and change users may see and change their organizations: either is about whose tasks start, and when.
    """

    name = "organizations"
    path = "organizations/"
    title: ClassVar[StrOrPromise] = gettext_lazy("Organizations")
    permission = "view_user"
    template = "admin/django_fairque/organizations.html"

    def template_context(self, queue: FairQueue) -> dict[str, Any]:
        wanted = self.request.GET.get("organization", "")
        return {
            **(self._one(queue, wanted) if wanted else self._table(queue)),
            "has_shards": queue.config.shards > 1,
            "wanted": wanted,
            "all": self.url(self.name),
            "users": self.link("users"),
        }

    def _table(self, queue: FairQueue) -> dict[str, Any]:
        cursor = self.request.GET.get("cursor") or None
        page = queue.organizations(cursor, ORGANIZATIONS_PER_PAGE)
        return {
            "table": [
                (stats, self.url(self.name, organization=stats.organization))
                for stats in queue.organization_stats(page.items)
            ],
            "next": self.url(self.name, cursor=page.cursor) if page.cursor else "",
            "first": self.url(self.name) if cursor else "",
        }

    def _one(self, queue: FairQueue, organization: str) -> dict[str, Any]:
        self.hold()
        try:
            stats = queue.organization(organization).stats()
        except TaskValidationError as error:
            return {"problem": str(error)}
        return {"stats": stats, "form": self.form or OrganizationForm.of(stats)}

    def pause(self, queue: FairQueue, request: HttpRequest) -> str:
        name = _organization_of(self, request)
        done = _("Organization %(organization)s is paused: no task of its members starts; what runs goes on.") % {
            "organization": name
        }
        return self._do(queue, done, queue.organization(name).pause)

    def resume(self, queue: FairQueue, request: HttpRequest) -> str:
        name = _organization_of(self, request)
        return self._do(
            queue,
            _("Organization %(organization)s is resumed.") % {"organization": name},
            queue.organization(name).resume,
        )

    def settings(self, queue: FairQueue, request: HttpRequest) -> str:
        """Both are set whether or not they differ: a shard that was away may have missed either."""
        name = _organization_of(self, request)
        organization, form = queue.organization(name), OrganizationForm(request.POST)
        if not form.is_valid():
            raise InvalidForm(form)
        weight, limit = form.cleaned_data["weight"], form.cleaned_data["max_running"]
        facts = {"organization": name, "weight": f"{weight:g}", "limit": limit and number(limit)}
        if limit is None:
            done = _("Organization %(organization)s has weight %(weight)s and no limit.") % facts
        else:
            done = (
                _("Organization %(organization)s has weight %(weight)s and runs at most %(limit)s tasks at once.")
                % facts
            )
        return self._do(
            queue, done, lambda: organization.set_weight(weight), lambda: organization.set_max_running(limit)
        )

    def _do(self, queue: FairQueue, done: str, *steps: Callable[[], None]) -> str:
        """Take all steps, though some shards may be away."""
        away = [error for error in map(_shards_away, steps) if error]
        if not away:
            return done
        if len(away[-1].shards) == queue.config.shards:
            raise away[-1]
        raise ShardsAwayError(f"{done} {away[-1]}", away[-1].shards)

    actions: ClassVar[dict[str, Action]] = {
        "pause": Action("change_user", pause, _organization_of),
        "resume": Action("change_user", resume, _organization_of),
        "settings": Action("change_user", settings, _organization_of),
    }
