"""The audit: what operators, commands and programs did to a queue; and acts on many tasks, which workers carry out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import Action, AdminPage
from django_fairque.audit import KEPT_DAYS, can_undo, list_values, read_entries, undo_settings
from django_fairque.engine.acts.acts import UNDONE_FROM
from django_fairque.monitoring.redaction import redacted_text
from django_fairque.monitoring.report import progress_words
from django_fairque.monitoring.translations import word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.models import QuerySet
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.acts.acts import TaskAct
    from django_fairque.engine.model.records import ActKind
    from django_fairque.models import AuditEntry

UNDO_PERMISSIONS = {"user": "change_user", "organization": "change_user", "queue": "change_queue"}
"""The permission to set values back, by the kind of the object."""
AUDIT_ENTRIES_PER_PAGE = 50
AUDIT_ENTRIES_SEARCHED = 10_000
"""Number of newest entries in which a text is searched, because the database has no index for this search."""


class AuditPage(AdminPage):
    """The changes of a queue, the newest first. The page reads only the database, so it works while the queue's server
    is down.
    """

    name = "audit"
    title = gettext_lazy("Audit")
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
                    "can_undo": can_undo(entry) and self.may(UNDO_PERMISSIONS[entry.kind]),
                    "object_url": entry.subject and self.url(self.name, kind=entry.kind, object=entry.subject),
                }
                for entry in shown
            ],
            **self.build_page_links(str(shown[-1].pk) if len(found) > len(shown) else None, "after", **filters),
        }

    @Action("view_queue")
    def undo(self) -> str:
        """Set the values of an entry back. This needs the permission of the act that the entry is about."""
        number = self.request.POST.get("entry", "")
        entry = self._entries().filter(pk=int(number)).first() if re.fullmatch("[0-9]{1,18}", number) else None
        if entry is None:
            raise ValueError(_("There is no such entry. Nothing was changed."))
        if not self.may(UNDO_PERMISSIONS.get(entry.kind, "delete_queue")):
            raise PermissionDenied
        undo_settings(self.queue, entry)
        return _("Undone: %(act)s %(object)s") % {"act": word(entry.act), "object": entry.subject or self.queue_name}

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


PERMISSIONS: dict[ActKind, str] = {
    "retry": "change_deadletter",
    "discard": "delete_deadletter",
    "move": "delete_deadletter",
    "cancel": "change_task",
}
"""The permission to start an act of each kind, and to stop or undo it."""
COUNTS: dict[str, StrOrPromise] = {
    "done": gettext_lazy("changed"),
    "dependents": gettext_lazy("that depended on them canceled"),
    "succeeded": gettext_lazy("succeeded"),
    "failed_again": gettext_lazy("failed again"),
    "same_error": gettext_lazy("of them with the same error"),
    "pending": gettext_lazy("not ended yet"),
    "skipped": gettext_lazy("skipped"),
    "restored": gettext_lazy("restored"),
    "kept": gettext_lazy("left as they are, because they have changed since"),
}
"""The counts of an act that are shown if they are not 0."""


def _counts(act: TaskAct) -> Iterator[tuple[StrOrPromise, int]]:
    """Yield the counts of an act that are not 0, with their labels. One failure has no number of equal errors."""
    for name, label in COUNTS.items():
        if (count := getattr(act, name)) and not (name == "same_error" and act.failed_again == 1):
            yield label, count


class ActsPage(AdminPage):
    """The acts of the last 24 hours, the latest first. Each button needs the permission of the act itself, and each act the
    permission to see its tasks.
    """

    name = "acts"
    title = gettext_lazy("Acts")
    permission = "view_queue"

    def template_context(self) -> dict[str, Any]:
        return {
            "rows": [
                {
                    "act": act,
                    "progress": progress_words(act, _),
                    "shows_progress": act.is_active or act.state == "stopped",
                    "note": redacted_text(act.note),
                    "counts": list(_counts(act)),
                    "has_failed_trial": act.state == "trial" and act.failed_again > 0,
                    "can_go_on": act.state in ("trial", "stopped"),
                    "can_stop": act.state in ("trial", "running"),
                    "can_undo": act.state in UNDONE_FROM,
                    "may_change": self.may(PERMISSIONS[act.kind]),
                }
                for act in self.queue.acts.list()
                if self._may_see(act)
            ]
        }

    def _may_see(self, act: TaskAct) -> bool:
        return self.may("view_task" if act.kind == "cancel" else "view_deadletter")

    def _change(self, change: Callable[[str], TaskAct], done: str, question: str = "") -> str:
        """Change the posted act, if the operator may start such an act. Return the sentence to show."""
        act = self.queue.acts.get(self.request.POST.get("act", ""))
        if not (self._may_see(act) and self.may(PERMISSIONS[act.kind])):
            raise PermissionDenied
        if question:
            self.ask_first(question, _("Yes, undo it"))
        change(act.id)
        return done % {"act": act.id}

    @Action("view_queue")
    def go_on(self) -> str:
        return self._change(self.queue.acts.go_on, _("Act %(act)s goes on"))

    @Action("view_queue")
    def stop(self) -> str:
        return self._change(self.queue.acts.stop, _("Act %(act)s is stopped"))

    @Action("view_queue")
    def undo(self) -> str:
        question = _(
            "Tasks that nothing has changed since are restored, and so are tasks that depended on them and were canceled."
        )
        return self._change(self.queue.acts.undo, _("Act %(act)s is being undone"), question)
