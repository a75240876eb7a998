"""Catalogues of people's documents. Written for Django's own task interface: nothing here knows which queue runs it."""

from __future__ import annotations

from typing import Any, TypedDict

from library.models import Document

from django_fairque.backends.compat import TaskContext, task  # from Django 6.0 on: from django.tasks import …


class Catalogue(TypedDict):
    """Somebody's documents: how many, and the largest of them by their lines."""

    owner: str
    documents: int
    largest: list[tuple[str, int]]
    attempt: int


@task(takes_context=True)
def catalogue_of(context: TaskContext[..., Any], owner: str, most: int = 10) -> Catalogue:
    """Draw up an owner's catalogue from what the library has analysed."""
    lines = {
        title: metrics["lines"]
        for title, metrics in Document.objects.filter(owner=owner).values_list("title", "metrics")
        if "lines" in metrics
    }
    largest = sorted(lines.items(), key=lambda each: (-each[1], each[0]))[:most]
    return Catalogue(owner=owner, documents=len(lines), largest=largest, attempt=context.attempt)


@task(priority=-50)
def catalogue_everybody(most: int = 10) -> list[str]:
    """Send for a catalogue of each owner; the ids of the results."""
    owners = Document.objects.order_by("owner").values_list("owner", flat=True).distinct()
    return [catalogue_of.enqueue(owner, most).id for owner in owners]
