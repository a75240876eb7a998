"""Documents in bulk: stored and sent to be analysed in slices, a transaction each."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from django.db import transaction

from .models import QUEUED_FIELDS, Document
from .sources import read_source
from .tasks import analyse_document, run_errand

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from django.db.models import QuerySet

T = TypeVar("T")

SLICE = 100
"""Documents in one transaction, for which the workers' writes wait; below SQLite's limit of variables."""
ERRANDS = 1_000
"""Errands in one call."""


def load_files(owner: str, files: Iterable[Path], root: Path) -> Iterator[list[str]]:
    """Make each file a document of ``owner``, or bring the one of the same title up to date.

    Returns
    -------
    The ids of the analyses, slice by slice as they are sent.
    """
    for some in slices(files, SLICE):
        yield submit(owner, {path.relative_to(root).as_posix(): read_source(path) for path in some})


def submit(owner: str, texts: dict[str, str]) -> list[str]:
    """Store texts by title, with their analyses on the way once all of them are committed."""
    documents = [Document(owner=owner, title=title, text=text) for title, text in texts.items()]
    for document in documents:
        document.mark_queued()
    with transaction.atomic():
        Document.objects.bulk_create(
            documents,
            update_conflicts=True,
            unique_fields=["owner", "title"],
            update_fields=["text", *QUEUED_FIELDS],
        )
        # Older SQLite does not return the keys of rows that were there already.
        stored = Document.objects.filter(owner=owner, title__in=texts)
        return enqueue((owner, pk) for pk in stored.values_list("pk", flat=True))


def store_files(owner: str, files: Iterable[Path], root: Path) -> list[int]:
    """Make each file a document of ``owner``, or renew its text, without having it analysed; their keys."""
    keys: list[int] = []
    for some in slices(files, SLICE):
        texts = {path.relative_to(root).as_posix(): read_source(path) for path in some}
        documents = [Document(owner=owner, title=title, text=text) for title, text in texts.items()]
        Document.objects.bulk_create(
            documents, update_conflicts=True, unique_fields=["owner", "title"], update_fields=["text"]
        )
        stored = Document.objects.filter(owner=owner, title__in=texts).order_by("title")
        keys += stored.values_list("pk", flat=True)
    return keys


def submit_again(documents: QuerySet[Document]) -> int:
    """Have documents analysed once more; how many there were."""
    keys = list(documents.values_list("pk", flat=True))
    for some in slices(keys, SLICE):
        found = list(Document.objects.filter(pk__in=some))
        for document in found:
            document.mark_queued()
        with transaction.atomic():
            Document.objects.bulk_update(found, QUEUED_FIELDS)
            enqueue((document.owner, document.pk) for document in found)
    return len(keys)


def send_errands(owner: str, count: int) -> Iterator[list[str]]:
    """The ids of ``count`` errands, slice by slice as they are sent."""
    for some in slices(range(count), ERRANDS):
        yield [result.id for result in run_errand.enqueue_many([((owner, number), {}) for number in some])]


def send_nightly_job(count: int) -> Iterator[list[str]]:
    """Send a bulk errand of each of ``count`` customers; their ids, slice by slice."""
    for some in slices(range(count), ERRANDS):
        results = run_errand.using(lane="bulk").enqueue_many([((f"customer{number}", number), {}) for number in some])
        yield [result.id for result in results]


def enqueue(targets: Iterable[tuple[str, int]]) -> list[str]:
    return [result.id for result in analyse_document.enqueue_many([(target, {}) for target in targets])]


def slices(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
