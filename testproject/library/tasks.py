"""The library's background work. Each task's result says when it began and how long it took, in seconds."""

from __future__ import annotations

import logging
import time
from typing import TypedDict

from django.utils import timezone

from django_fairque import Concurrency, Discard, Priority, Rate, current_task, task

from .analysis import analyse
from .models import Document
from .outline import Complexity, Imports, Outline, complexity_figures, import_figures, outline

logger = logging.getLogger(__name__)


class Timing(TypedDict):
    started: float
    took: float


@task(user="owner")
def analyse_document(owner: str, pk: int) -> Timing:
    """Store the figures of a document's text. Doing it twice does no harm.

    Parameters
    ----------
    owner
        The document's owner, whose turn this takes.
    """
    started = time.time()
    document = Document.objects.filter(pk=pk).only("text", "sha").first()
    if document is None:
        raise Discard(f"document {pk} of {owner} was deleted")
    # Only if the text is still the one that was read: for a newer one another analysis is on its way.
    same_text = Document.objects.filter(pk=pk, sha=document.sha)
    try:
        metrics = analyse(document.text)
    except Exception:
        same_text.update(status=Document.Status.FAILED)
        raise
    same_text.update(metrics=metrics, status=Document.Status.ANALYSED, analysed_at=timezone.now())
    return Timing(started=started, took=time.time() - started)


ERRAND = '"""A little something to look at."""\n' + 25 * "def look(at, it):  # again\n    return at[it] + len(it)\n\n\n"


@task(user="owner")
def run_errand(owner: str, number: int) -> Timing:
    """About a millisecond of work, of which somebody may want a lot."""
    started = time.time()
    logger.debug("errand %d of %s: %d tokens", number, owner, analyse(ERRAND)["tokens"])
    return Timing(started=started, took=time.time() - started)


@task(user="owner", lane="urgent")
def send_code(owner: str) -> Timing:  # noqa: ARG001 - sends nothing to anybody
    """Send a login code, for which a person waits."""
    return Timing(started=time.time(), took=0.0)


@task(user="owner", max_retries=0)
def send_reminder(owner: str, address: str, *, api_token: str) -> None:  # noqa: ARG001 - sends nothing to anybody
    """What becomes a dead letter, for there to be one to look at."""
    if "@" not in address:
        raise ValueError(f"{address!r} is no address")


@task(user="owner")
def serve_customer(owner: str, number: int, seconds: float) -> Timing:  # noqa: ARG001 - whose turn it takes
    """Wait for another service for this many seconds, as most tasks of a real site do most of the time."""
    started = time.time()
    time.sleep(seconds)
    return Timing(started=started, took=time.time() - started)


@task(user="owner", limits=[Concurrency("mailbox:{mailbox}", 1), Rate("imap", "40/m", burst=5)])
def fetch_mail(owner: str, mailbox: str, seconds: float) -> str:
    """Wait for a mail server for this many seconds. It accepts one connection to a mailbox, and 40 connections a minute."""
    time.sleep(seconds)
    return f"mails of {owner} in {mailbox}"


@task(user="owner", max_retries=3, backoff={"base": 2.0, "cap": 5.0})
def fetch_rates(owner: str) -> str:
    """What fails at first and works when it is tried again."""
    if current_task().attempt == 1:
        raise ConnectionError("the exchange did not answer")
    return f"rates for {owner}"


@task(user="owner", timeout=600)
def rebuild_search_index(owner: str, seconds: int) -> str:
    """What runs for minutes and reports how far it is."""
    for second in range(seconds):
        time.sleep(1)
        current_task().progress(second + 1, seconds, f"documents of {owner}")
    return f"index of {owner}"


class Report(TypedDict):
    """What is known about a package in the end."""

    package: str
    complexity: Complexity
    imports: Imports


@task(user="owner")
def parse_document(owner: str, pk: int) -> Outline:
    """What one document defines and imports."""
    document = Document.objects.filter(pk=pk).only("title", "text").first()
    if document is None:
        raise Discard(f"document {pk} of {owner} was deleted")
    return outline(document.title, document.text)


@task(user="owner", priority=Priority.HIGH)
def complexity_of(owner: str) -> Complexity:  # noqa: ARG001 - whose turn it takes
    return complexity_figures(current_task().parent_results().values())


@task(user="owner", priority=Priority.HIGH)
def imports_of(owner: str) -> Imports:  # noqa: ARG001
    return import_figures(current_task().parent_results().values())


@task(user="owner", priority=Priority.VERY_HIGH)
def report_on(owner: str) -> Report:
    complexity, imports = current_task().parent_results().values()
    return Report(package=owner, complexity=complexity, imports=imports)
