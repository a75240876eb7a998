"""`QueueAdmin`: the app's place in the admin's index, under which all pages hang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.urls import path

from django_fairque.models import Queue

from .pages import PAGES

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.urls import URLPattern

    Base = admin.ModelAdmin[Queue]
else:
    Base = admin.ModelAdmin  # no generic at run time


@admin.register(Queue)
class QueueAdmin(Base):
    """There are no rows: what there is to see is on a server."""

    def get_urls(self) -> list[URLPattern]:
        """The pages, each guarded by the admin and then by itself. The first is also the model's "list"."""
        views = [
            path(
                page.path,
                self.admin_site.admin_view(page.as_view(model_admin=self)),
                name=f"django_fairque_{page.name}",
            )
            for page in PAGES
        ]
        first = PAGES[0]
        index = self.admin_site.admin_view(first.as_view(model_admin=self))
        return [path("", index, name="django_fairque_queue_changelist"), *views]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return any(request.user.has_perm(f"django_fairque.{page.permission}") for page in PAGES)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
