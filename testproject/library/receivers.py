"""What happens when something of the library is saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models.signals import post_save
from django.dispatch import receiver

from .models import QUEUED_FIELDS, Document
from .tasks import analyse_document

if TYPE_CHECKING:
    from collections.abc import Collection


@receiver(post_save, sender=Document)
def analyse_saved_text(
    instance: Document, *, raw: bool, update_fields: Collection[str] | None, using: str, **_: Any
) -> None:
    """A text that was saved is analysed once that is committed; fixtures bring their figures along."""
    if raw or (update_fields is not None and "text" not in update_fields):
        return
    instance.mark_queued()
    queued = {name: getattr(instance, name) for name in QUEUED_FIELDS}
    Document.objects.using(using).filter(pk=instance.pk).update(**queued)
    analyse_document.enqueue(instance.owner, instance.pk)
