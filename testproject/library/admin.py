from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.defaultfilters import pluralize
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from .endless_day import is_nightly_job_waiting, send_nightly_job
from .loading import submit_again
from .models import Document

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest
    from django.urls import URLPattern

    DocumentAdminBase = admin.ModelAdmin[Document]
else:
    DocumentAdminBase = admin.ModelAdmin  # no generic at run time


@admin.register(Document)
class DocumentAdmin(DocumentAdminBase):
    list_display = ("title", "owner", "status", "lines", "functions", "classes", "queued_at", "analysed_at")
    list_filter = ("status", "owner")
    search_fields = ("title", "owner")
    readonly_fields = ("status", "metrics", "sha", "created_at", "queued_at", "analysed_at")
    show_full_result_count = False
    actions = ("analyse_again",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Document]:
        """Without the texts where only a list is shown."""
        documents: QuerySet[Document] = super().get_queryset(request).defer("text")
        return documents

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_POST(self.start_nightly_job))
        return [path("nightly-job/", view, name="library_nightly_job"), *super().get_urls()]

    def start_nightly_job(self, request: HttpRequest) -> HttpResponseRedirect:
        """Send the nightly job: the page *Live* has a button for it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if is_nightly_job_waiting():
            self.message_user(request, _("Tasks of the last nightly job are still waiting."), messages.WARNING)
        else:
            sentence = _("Nightly job: %(count)s bulk tasks were sent, each of another customer.")
            self.message_user(request, sentence % {"count": send_nightly_job()}, messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:django_fairque_live"))

    @admin.display
    def lines(self, document: Document) -> str:
        return figure(document, "lines")

    @admin.display
    def functions(self, document: Document) -> str:
        return figure(document, "functions")

    @admin.display
    def classes(self, document: Document) -> str:
        return figure(document, "classes")

    @admin.action(description="Analyse again", permissions=["change"])
    def analyse_again(self, request: HttpRequest, queryset: QuerySet[Document]) -> None:
        count = submit_again(queryset)
        self.message_user(request, f"{count} document{pluralize(count)} will be analysed.", messages.SUCCESS)


def figure(document: Document, name: str) -> str:
    return f"{document.metrics[name]:,}" if name in document.metrics else ""
