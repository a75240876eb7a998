"""`QueueAdmin` is the app's entry in the admin's index. All pages belong to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext_lazy as _

from django_fairque.admin.pages.audit import ActsPage, AuditPage
from django_fairque.admin.pages.base import APP, AdminPage
from django_fairque.admin.pages.dead_letters import DeadLetterPage, DeadLettersPage
from django_fairque.admin.pages.dependencies import DependenciesPage
from django_fairque.admin.pages.incidents import IncidentPage, IncidentsPage
from django_fairque.admin.pages.limits import LimitsPage
from django_fairque.admin.pages.live import LivePage
from django_fairque.admin.pages.model_events import ModelEventsPage
from django_fairque.admin.pages.organizations import OrganizationsPage
from django_fairque.admin.pages.overview import OverviewPage
from django_fairque.admin.pages.queues import QueuesPage
from django_fairque.admin.pages.runs import RunPage, RunsPage
from django_fairque.admin.pages.schedules import SchedulesPage
from django_fairque.admin.pages.task_page import TaskPage
from django_fairque.admin.pages.tasks import TaskNamesPage, TasksPage
from django_fairque.admin.pages.upcoming import UpcomingPage
from django_fairque.admin.pages.user_report import SlaPage, UserReportPage
from django_fairque.admin.pages.users import UsersPage
from django_fairque.admin.pages.workers import WorkersPage
from django_fairque.models import Queue

if TYPE_CHECKING:
    from django.http.response import HttpResponseBase
    from django_stubs_ext import StrOrPromise


MENU: tuple[tuple[StrOrPromise, tuple[type[AdminPage], ...]], ...] = (
    (_("Now"), (OverviewPage, LivePage, IncidentsPage, QueuesPage)),
    (_("Customers"), (UsersPage, OrganizationsPage, LimitsPage, SlaPage)),
    (_("Tasks"), (TasksPage, TaskNamesPage, DeadLettersPage, DependenciesPage, RunsPage, SchedulesPage)),
    (_("System"), (WorkersPage, ModelEventsPage, ActsPage, AuditPage)),
)
"""The groups of the menu, with their pages."""
PAGES: tuple[type[AdminPage], ...] = (
    *(page for _group, pages in MENU for page in pages),
    *(IncidentPage, UserReportPage, TaskPage, DeadLetterPage, RunPage, UpcomingPage),
)
"""All pages: first the pages of the menu in its order, then the pages that can be reached from them. The entry in the
admin's index leads to the first page that the user may see."""


def _list_visible_pages(request: HttpRequest) -> list[type[AdminPage]]:
    return [page for page in PAGES if request.user.has_perm(f"{APP}.{page.permission}")]


@admin.register(Queue)
class QueueAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # no generic at run time
    """The admin of queues. This model has no rows in a database, because queues are stored on a server."""

    pages = PAGES
    menu = MENU

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of the pages. The admin and then the page itself check permissions. The URL of the first page
        is also the model's "changelist".
        """
        views = [
            path(page.path, self.admin_site.admin_view(page.as_view(model_admin=self)), name=f"{APP}_{page.name}")
            for page in PAGES
        ]
        index = self.admin_site.admin_view(self._first_page)
        return [path("", index, name=f"{APP}_queue_changelist"), *views]

    def _first_page(self, request: HttpRequest) -> HttpResponseBase:
        """Redirect to the first page that the user may see, unless the user may see this page, the first of all."""
        first = next(iter(_list_visible_pages(request)), None)
        if first is None:
            raise PermissionDenied
        if first is PAGES[0]:
            return first.as_view(model_admin=self)(request)
        url, query = reverse(f"admin:{APP}_{first.name}", current_app=self.admin_site.name), request.GET.urlencode()
        return HttpResponseRedirect(f"{url}?{query}" if query else url)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(_list_visible_pages(request))

    has_module_permission = has_view_permission

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission
