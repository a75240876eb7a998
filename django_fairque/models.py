"""Models in the project's databases: the outbox, the audit log, and the permissions for the admin's pages."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class Queue(models.Model):
    """A model without a table, to which the pages in the admin and their permissions belong."""

    name = models.CharField(_("name"), max_length=200, primary_key=True)

    class Meta:
        managed = False
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        # view: see queues; change: pause queues; delete: purge queues
        default_permissions = ("view", "change", "delete")
        permissions = (
            ("view_user", "Can see users of queues"),
            ("change_user", "Can pause, weigh and limit users of queues"),
            ("delete_user", "Can purge what users have waiting"),
            ("view_task", "Can see tasks"),
            ("change_task", "Can cancel tasks, and run them now"),
            ("view_deadletter", "Can see dead letters"),
            ("change_deadletter", "Can requeue dead letters"),
            ("delete_deadletter", "Can discard dead letters"),
            ("view_dependency", "Can see what tasks wait for"),
            ("change_dependency", "Can release and cancel tasks that wait for others"),
            ("view_schedule", "Can see schedules"),
            ("change_schedule", "Can change schedules, and run them now"),
            ("view_worker", "Can see workers"),
            ("change_worker", "Can drain and stop workers"),
            ("view_event", "Can see model events"),
            ("view_tasklog", "Can see captured log lines of tasks"),
        )

    def __str__(self) -> str:
        return self.name


class OutboxEntry(models.Model):
    """One task, or one graph of tasks that depend on each other, that a transaction has stored and that is not in its
    queue yet.

    The transaction that enqueues the task writes the row. Rows are relayed in the order of their ids, and then removed.
    An existing row is either new, or has the reason for its delay in ``last_error``.
    """

    queue = models.CharField(_("queue"), max_length=64)
    user_id = models.CharField(_("user"), max_length=256, help_text=_("whose it is; of a graph, its first task's"))
    name = models.CharField(_("task"), max_length=200, blank=True)
    task_id = models.CharField(_("task id"), max_length=256)
    tasks = models.TextField(_("tasks"), help_text=_("a JSON list of tasks with everything that is sent"))
    created_at = models.DateTimeField(_("written at"), auto_now_add=True)
    attempts = models.PositiveIntegerField(_("attempts"), default=0, help_text=_("that failed"))
    last_error = models.TextField(_("last error"), blank=True, default="")
    retry_at = models.DateTimeField(_("tried again at"), null=True, blank=True)
    is_stuck = models.BooleanField(
        _("stuck"), default=False, help_text=_("can't be relayed as it is, so what follows does not wait for it")
    )

    class Meta:
        verbose_name = _("outbox entry")
        verbose_name_plural = _("outbox entries")
        ordering = ("id",)
        indexes = (
            models.Index(fields=("user_id", "id"), name="fairque_outbox_user"),
            models.Index(fields=("retry_at",), name="fairque_outbox_retry"),
        )

    def __str__(self) -> str:
        return f"{self.name or self.task_id} ({self.queue}, {self.user_id})"


class AuditEntry(models.Model):
    """One action on a queue: the actor, the action, its object and its origin, and the values that were changed, before
    and after.
    """

    at = models.DateTimeField(default=timezone.now, db_index=True)
    actor = models.CharField(max_length=256)
    source = models.CharField(max_length=32)
    queue = models.CharField(max_length=64)
    act = models.CharField(max_length=64)
    kind = models.CharField(max_length=32)
    subject = models.CharField(max_length=256, blank=True)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    text = models.TextField(blank=True)

    class Meta:
        default_permissions = ()  # the audit page requires the permission to see queues
        ordering = ("-id",)
        indexes = (models.Index(fields=("queue", "kind", "subject"), name="fairque_audit_object"),)

    def __str__(self) -> str:
        return f"{self.queue}: {self.subject}" if self.subject else self.queue
