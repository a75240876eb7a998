"""The outbox in the admin: entries that wait, with the reasons. An operator can try to relay entries again, or delete
entries and lose their tasks.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_fairque.admin.page_queues import page_queue
from django_fairque.audit import write_entry
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.task import Undecodable
from django_fairque.engine.scripting.acts import Act
from django_fairque.models import OutboxEntry
from django_fairque.monitoring.formatting import number
from django_fairque.monitoring.redaction import as_text, redact_value, redacted_text
from django_fairque.outbox.relay import relay

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest


@admin.register(OutboxEntry)
class OutboxEntryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # no generic at run time
    """The admin of outbox entries. Operators can't add or change entries, because transactions write them and workers
    relay them.
    """

    list_display = ("__str__", "task_id", "created_at", "attempts", "is_stuck", "retry_at", "shown_error")
    fields = (
        *("queue", "user_id", "name", "task_id", "shown_tasks", "created_at"),
        *("attempts", "shown_error", "retry_at", "is_stuck"),
    )
    readonly_fields = fields
    list_filter = ("is_stuck", "queue")
    search_fields = ("user_id", "name", "task_id")
    show_full_result_count = False
    actions = ("try_again",)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_add_permission

    def has_relay_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may try entries again. This needs the permission to change entries."""
        return request.user.has_perm("django_fairque.change_outboxentry")

    @admin.display(description=_("last error"), ordering="last_error")
    def shown_error(self, entry: OutboxEntry) -> str:
        return redacted_text(entry.last_error)

    @admin.display(description=_("tasks"))
    def shown_tasks(self, entry: OutboxEntry) -> str:
        """Return the tasks of an entry with secrets hidden."""
        try:
            tasks = [
                {**task, "payload": json_payload.loads(task["payload"].encode())} for task in json.loads(entry.tasks)
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return as_text(Undecodable(entry.tasks.encode(), str(error)))
        return as_text(redact_value(tasks))

    @admin.action(description=_("Try again now"), permissions=["relay"])
    def try_again(self, request: HttpRequest, queryset: QuerySet[OutboxEntry]) -> None:
        """Relay all entries of the users whose entries were selected, because the order of a user's tasks must be
        kept.
        """
        for entry in queryset:
            act = Act(entry.queue, "try again", "outbox", f"{entry.name or entry.task_id} ({entry.user_id})")
            write_entry(request.user.get_username(), "admin", act, text=gettext("Tried again."))
        queryset.update(retry_at=None)
        relayed = relay(queryset.db, set(queryset.values_list("user_id", flat=True)), queue_of=page_queue)
        if relayed.error is not None:
            self.message_user(request, str(relayed.error), messages.ERROR)
        text = ngettext("%s task was relayed.", "%s tasks were relayed.", relayed.tasks) % number(relayed.tasks)
        has_failed = relayed.refused or relayed.error is not None
        self.message_user(request, text, messages.WARNING if has_failed else messages.SUCCESS)
        if relayed.more and relayed.error is None:
            more = _("These users have more entries: try those again too, or leave them to the workers.")
            self.message_user(request, more, messages.WARNING)
