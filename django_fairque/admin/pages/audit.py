"""The audit page: changes of a queue by operators, commands and programs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_fairque.admin.pages.base import AdminPage
from django_fairque.audit import KEPT_DAYS, list_values, read_entries
from django_fairque.monitoring.redaction import redacted_text
from django_fairque.monitoring.translations import word

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from django_fairque.models import AuditEntry

AUDIT_ENTRIES_PER_PAGE = 50
AUDIT_ENTRIES_SEARCHED = 10_000
"""Number of newest entries in which a text is searched, because the database has no index for this search."""


class AuditPage(AdminPage):
    """The changes of a queue, the newest first. The page reads only the database, so it works while the queue's server
    is down.
    """

    name = "audit"
    title = _("Audit")
    permission = "view_queue"

    def template_context(self) -> dict[str, Any]:
        filters = {name: self._clean_parameter(name) for name in ("operator", "object", "kind", "text")}
        entries = self._entries()
        limit = None
        for field, name in (("actor", "operator"), ("subject", "object"), ("kind", "kind")):
            if filters[name]:
                entries = entries.filter(**{field: filters[name]})
        if text := filters["text"]:
            limit = entries.values_list("pk", flat=True)[AUDIT_ENTRIES_SEARCHED - 1 : AUDIT_ENTRIES_SEARCHED].first()
            about = Q(subject__icontains=text) | Q(text__icontains=text) | Q(act__icontains=text)
            entries = entries.filter(about, pk__gte=limit or 0)
        if re.fullmatch("[0-9]{1,18}", after := self.request.GET.get("after", "")):
            entries = entries.filter(pk__lt=int(after))
        found = list(entries[: AUDIT_ENTRIES_PER_PAGE + 1])
        shown = found[:AUDIT_ENTRIES_PER_PAGE]
        return {
            **filters,
            "is_filtered": any(filters.values()),
            "is_cut": limit is not None,
            "most": AUDIT_ENTRIES_SEARCHED,
            "days": KEPT_DAYS,
            "here": self.url(self.name),
            "rows": [
                {
                    **audit_row(entry),
                    "url": self.url(self.name, operator=entry.actor),
                    "object_url": entry.subject and self.url(self.name, kind=entry.kind, object=entry.subject),
                }
                for entry in shown
            ],
            **self.build_page_links(str(shown[-1].pk) if len(found) > len(shown) else None, "after", **filters),
        }

    def _clean_parameter(self, name: str) -> str:
        """Remove zero bytes, because PostgreSQL refuses texts that contain them."""
        return self.request.GET.get(name, "").replace("\0", "")[:256]

    def _entries(self) -> QuerySet[AuditEntry]:
        """Return the audit entries about the queue. Entries about its outbox are included only if the reader may see
        the outbox.
        """
        found: QuerySet[AuditEntry] = read_entries().filter(queue=self.queue_name)
        return found if self.may("view_outboxentry") else found.exclude(kind="outbox")


def audit_row(entry: AuditEntry) -> dict[str, Any]:
    """Return the values that a table shows about an audit entry, without secrets."""
    return {
        "entry": entry,
        "done": redacted_text(entry.text),
        "before": [(word(name), word(redacted_text(value))) for name, value in list_values(entry.before)],
        "after": [(word(name), word(redacted_text(value))) for name, value in list_values(entry.after)],
    }
