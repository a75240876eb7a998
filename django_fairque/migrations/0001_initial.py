from __future__ import annotations

import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = ()

    operations = (
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.CharField(max_length=200, primary_key=True, serialize=False, verbose_name="name")),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "permissions": (
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
                ),
                "managed": False,
                "default_permissions": ("view", "change", "delete"),
            },
        ),
        migrations.CreateModel(
            name="OutboxEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", models.CharField(max_length=64, verbose_name="queue")),
                (
                    "user_id",
                    models.CharField(
                        help_text="whose it is; of a graph, its first task's", max_length=256, verbose_name="user"
                    ),
                ),
                ("name", models.CharField(blank=True, max_length=200, verbose_name="task")),
                ("task_id", models.CharField(max_length=256, verbose_name="task id")),
                (
                    "tasks",
                    models.TextField(
                        help_text="a JSON list of tasks with everything that is sent", verbose_name="tasks"
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="written at")),
                ("attempts", models.PositiveIntegerField(default=0, help_text="that failed", verbose_name="attempts")),
                ("last_error", models.TextField(blank=True, default="", verbose_name="last error")),
                ("retry_at", models.DateTimeField(blank=True, null=True, verbose_name="tried again at")),
                (
                    "is_stuck",
                    models.BooleanField(
                        default=False,
                        help_text="can't be relayed as it is, so what follows does not wait for it",
                        verbose_name="stuck",
                    ),
                ),
            ],
            options={
                "verbose_name": "outbox entry",
                "verbose_name_plural": "outbox entries",
                "ordering": ("id",),
                "indexes": [
                    models.Index(fields=["user_id", "id"], name="fairque_outbox_user"),
                    models.Index(fields=["retry_at"], name="fairque_outbox_retry"),
                ],
            },
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ("actor", models.CharField(max_length=256)),
                ("source", models.CharField(max_length=32)),
                ("queue", models.CharField(max_length=64)),
                ("act", models.CharField(max_length=64)),
                ("kind", models.CharField(max_length=32)),
                ("subject", models.CharField(blank=True, max_length=256)),
                ("before", models.JSONField(default=dict)),
                ("after", models.JSONField(default=dict)),
                ("text", models.TextField(blank=True)),
            ],
            options={
                "ordering": ("-id",),
                "default_permissions": (),
                "indexes": [models.Index(fields=["queue", "kind", "subject"], name="fairque_audit_object")],
            },
        ),
    )
