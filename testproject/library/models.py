"""What the library keeps."""

from __future__ import annotations

import hashlib
from typing import Any

from django.db import models
from django.utils import timezone


class Document(models.Model):
    """A text that belongs to somebody, with figures about it."""

    class Status(models.TextChoices):
        NEW = "new"
        QUEUED = "queued"
        ANALYSED = "analysed"
        FAILED = "failed"

    owner = models.CharField(max_length=100, help_text="whose it is: the user that its analysis is done for")
    title = models.CharField(max_length=255, help_text="the file's path")
    status = models.CharField(max_length=10, choices=Status, default=Status.NEW, editable=False)
    sha = models.CharField(max_length=64, default="", editable=False, help_text="SHA-256 of the text that was queued")
    metrics = models.JSONField(default=dict, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    queued_at = models.DateTimeField(null=True, editable=False)
    analysed_at = models.DateTimeField(null=True, editable=False)
    # Last: what stands behind a long text in a row is slow to reach.
    text = models.TextField()

    class Meta:
        ordering = ("owner", "title")
        indexes = (models.Index(fields=("status", "owner"), name="document_status"),)
        constraints = (models.UniqueConstraint(fields=("owner", "title"), name="one_document_per_title"),)

    def __str__(self) -> str:
        return f"{self.owner}: {self.title}"

    def save(self, *args: Any, **options: Any) -> None:
        """A text that is new here is marked as queued along with it; `events` has it analysed."""
        fields = options.get("update_fields")
        is_saved = "text" in (self.__dict__ if fields is None else fields)
        if is_saved and self.sha != self.digest():
            self.mark_queued()
            if fields is not None:
                options["update_fields"] = {*fields, *QUEUED_FIELDS}
        super().save(*args, **options)

    def digest(self) -> str:
        return hashlib.sha256(self.text.encode(errors="surrogatepass")).hexdigest()

    def mark_queued(self) -> None:
        """Say that the text as it is now is about to be analysed; to be saved with `QUEUED_FIELDS`."""
        self.sha = self.digest()
        self.status = self.Status.QUEUED
        self.queued_at = timezone.now()


QUEUED_FIELDS = ("sha", "status", "queued_at")
