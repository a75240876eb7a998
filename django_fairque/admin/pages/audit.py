"""The audit page: operators' actions on a queue, from the admin's log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_fairque.admin.pages.base import AdminPage
from django_fairque.models import OutboxEntry, Queue
from django_fairque.monitoring.redaction import redacted_text

if TYPE_CHECKING:
    from django.db.models import QuerySet

AUDIT_ENTRIES_PER_PAGE = 50
AUDIT_ENTRIES_SEARCHED = 10_000
"""The newest entries, among which a text is searched: the database has no index for it."""


class AuditPage(AdminPage):
    """The operators' actions, the newest first. The page reads only the database, so it works while the server is down."""

    name = "audit"
    title = _("Audit")
    permission = "view_queue"

    def template_context(self) -> dict[str, Any]:
        operator, text = self._clean_parameter("operator"), self._clean_parameter("text")
        entries = self._entries()
        limit = None
        if operator:
            entries = entries.filter(**{f"user__{get_user_model().USERNAME_FIELD}": operator})
        if text:
            limit = entries.values_list("pk", flat=True)[AUDIT_ENTRIES_SEARCHED - 1 : AUDIT_ENTRIES_SEARCHED].first()
            entries = entries.filter(
                Q(object_repr__icontains=text) | Q(change_message__icontains=text), pk__gte=limit or 0
            )
        if re.fullmatch("[0-9]{1,18}", after := self.request.GET.get("after", "")):
            entries = entries.filter(pk__lt=int(after))
        found = list(entries.select_related("user")[: AUDIT_ENTRIES_PER_PAGE + 1])
        shown = found[:AUDIT_ENTRIES_PER_PAGE]
        return {
            "operator": operator,
            "text": text,
            "is_cut": limit is not None,
            "most": AUDIT_ENTRIES_SEARCHED,
            "here": self.url(self.name),
            "rows": [
                {
                    "at": entry.action_time,
                    "operator": entry.user.get_username(),
                    "url": self.url(self.name, operator=entry.user.get_username()),
                    "subject": entry.object_repr.removeprefix(self.queue_name).removeprefix(": "),
                    "done": redacted_text(entry.get_change_message()),
                }
                for entry in shown
            ],
            **self.build_page_links(
                str(shown[-1].pk) if len(found) > len(shown) else None, "after", operator=operator, text=text
            ),
        }

    def _clean_parameter(self, name: str) -> str:
        """PostgreSQL refuses texts with a zero byte."""
        return self.request.GET.get(name, "").replace("\0", "")[:256]

    def _entries(self) -> QuerySet[LogEntry]:
        """Select entries about the queue. Include the ones about its outbox only if the reader may see the outbox."""
        name = self.queue_name
        kinds = ContentType.objects.get_for_models(Queue, OutboxEntry)
        about = Q(content_type=kinds[Queue]) & (Q(object_repr=name) | Q(object_repr__startswith=f"{name}: "))
        if self.may("view_outboxentry"):
            about |= Q(content_type=kinds[OutboxEntry], object_repr__contains=f" ({name}, ")
        found: QuerySet[LogEntry] = LogEntry.objects.filter(about).order_by("-pk")
        return found
