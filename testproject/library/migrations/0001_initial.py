from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Document",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "owner",
                    models.CharField(help_text="whose it is: the user that its analysis is done for", max_length=100),
                ),
                ("title", models.CharField(help_text="the file's path", max_length=255)),
                (
                    "status",
                    models.CharField(
                        choices=[("new", "New"), ("queued", "Queued"), ("analysed", "Analysed"), ("failed", "Failed")],
                        default="new",
                        editable=False,
                        max_length=10,
                    ),
                ),
                (
                    "sha",
                    models.CharField(
                        default="", editable=False, help_text="SHA-256 of the text that was queued", max_length=64
                    ),
                ),
                ("metrics", models.JSONField(blank=True, default=dict, editable=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("queued_at", models.DateTimeField(editable=False, null=True)),
                ("analysed_at", models.DateTimeField(editable=False, null=True)),
                ("text", models.TextField()),
            ],
            options={
                "ordering": ("owner", "title"),
                "indexes": [models.Index(fields=["status", "owner"], name="document_status")],
                "constraints": [models.UniqueConstraint(fields=("owner", "title"), name="one_document_per_title")],
            },
        ),
    ]
