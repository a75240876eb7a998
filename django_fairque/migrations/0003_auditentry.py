from __future__ import annotations

import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("django_fairque", "0002_view_tasklog"),)

    operations = (
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
