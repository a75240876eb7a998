from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = (("django_fairque", "0001_initial"),)

    operations = (
        migrations.AlterModelOptions(
            name="queue",
            options={
                "default_permissions": ("view", "change", "delete"),
                "managed": False,
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
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
            },
        ),
    )
