"""Organizations: their members, running tasks, and settings, which operators can change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin.pages.base import Action, AdminPage, InvalidForm
from django_fairque.admin.pages.users import OrganizationForm, posted_pause
from django_fairque.engine.model.errors import ShardsAwayError, TaskValidationError
from django_fairque.monitoring import formatting
from django_fairque.monitoring.formatting import number
from django_fairque.monitoring.wait_explanations import with_details

ORGANIZATIONS_PER_PAGE = 50


class OrganizationsPage(AdminPage):
    """A table of organizations by name; with ``?organization=`` the page of one organization with its settings.

    The permissions to see and to change users apply here too: users and organizations both decide which tasks start, and when.
    """

    name = "organizations"
    title = gettext_lazy("Organizations")
    permission = "view_user"
    subject_field = "organization"

    def template_context(self) -> dict[str, Any]:
        wanted = self.request.GET.get("organization", "")
        return {
            **(self._one(wanted) if wanted else self._table()),
            "has_shards": self.queue.config.shards > 1,
            "wanted": wanted,
            "all": self.url(self.name),
            "users": self.link("users"),
        }

    def _table(self) -> dict[str, Any]:
        page = self.queue.organizations(self.request.GET.get("cursor") or None, ORGANIZATIONS_PER_PAGE)
        found = self.queue.organization_stats(page.items)
        table = [(stats, self.url(self.name, organization=stats.organization)) for stats in found]
        return {"table": table, **self.build_page_links(page.cursor)}

    def _one(self, organization: str) -> dict[str, Any]:
        self.refreshes = False
        try:
            stats = self.queue.organization(organization).stats()
        except TaskValidationError as error:
            return {"problem": str(error)}
        return {"stats": stats, "form": self.form or OrganizationForm.from_stats(stats)}

    @Action("change_user")
    def pause(self) -> str:
        self.ask_before_pause()
        done = _("Organization %(organization)s is paused: no task of its members starts; what runs goes on.")
        organization, pause = self.queue.organization(self.subject), posted_pause(self.request.POST)
        done = with_details(done % {"organization": self.subject}, pause)
        return self._do(done, lambda: organization.pause(note=pause.note, until=pause.until))

    @Action("change_user")
    def resume(self) -> str:
        done = _("Organization %(organization)s is resumed.")
        return self._do(done % {"organization": self.subject}, self.queue.organization(self.subject).resume)

    @Action("change_user")
    def settings(self) -> str:
        """Set all values, even unchanged ones, because a shard that was down may have missed an earlier change."""
        organization, form = self.queue.organization(self.subject), OrganizationForm(self.request.POST)
        if not form.is_valid():
            raise InvalidForm(form)
        weight, limit, share = (form.cleaned_data[name] for name in ("weight", "max_running", "share"))
        if limit is None:
            done = _("Organization %(organization)s has weight %(weight)s and no limit.")
        else:
            done = ngettext(
                "Organization %(organization)s has weight %(weight)s and runs at most %(limit)s task at once.",
                "Organization %(organization)s has weight %(weight)s and runs at most %(limit)s tasks at once.",
                limit,
            )
        done %= {"organization": self.subject, "weight": f"{weight:g}", "limit": limit and number(limit)}
        if share is not None:
            done += " " + _("It is guaranteed %(share)s of the worker time.") % {"share": formatting.share(share)}
        steps = (
            lambda: organization.set_share(share),  # the share is set first, because the engine may refuse it
            lambda: organization.set_weight(weight),
            lambda: organization.set_max_running(limit),
        )
        try:
            return self._do(done, *steps)
        except TaskValidationError as error:
            raise InvalidForm(form, "share", error) from None

    def _do(self, done: str, *steps: Callable[[], None]) -> str:
        """Execute all steps, even if some shards are down."""
        away: ShardsAwayError | None = None
        for step in steps:
            try:
                step()
            except ShardsAwayError as error:  # noqa: PERF203 - the others are still to be taken
                away = error
        if away is None:
            return done
        if len(away.shards) == self.queue.config.shards:
            raise away
        raise ShardsAwayError(f"{done} {away}", away.shards)
