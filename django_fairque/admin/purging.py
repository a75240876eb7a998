"""Canceling what waits, of a queue or of a user: asked first, then so much at once that no request lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from django_fairque.monitoring.formatting import number
from django_fairque.tasks import canceling

from .confirming import is_confirmed

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque.admin.pages.base import Page
    from django_fairque.engine.queue.queue import FairQueue

    from .confirming import Question

PURGED_AT_ONCE = 10_000
"""Tasks canceled by one request: about a second's work, so that no proxy gives up on it."""


def purge(
    page: Page,
    subject: str,
    queue: FairQueue,
    cancel: Callable[..., int],
    waiting: Callable[[], int],
    said: Callable[[int], str],
    question: Callable[..., Question],
) -> str:
    """Cancel at most `PURGED_AT_ONCE` tasks; what was done, or as long as more wait, the question whether to go on.

    Args:
        subject: whose they are, for the audit trail: each slice is a line of it.
        cancel: the engine's purge of them: at most so many, which it notes; how many it canceled.
        said: of so many.
        question: about so many that wait, after what was said of those that did.
    """
    if not is_confirmed(page.request):
        raise question(waiting())
    done = canceling.telling(queue, lambda note: cancel(PURGED_AT_ONCE, note=note))
    text = said(done)
    left = waiting() if done >= PURGED_AT_ONCE else 0
    if left:
        page.log(subject, text)
        raise question(left, text)
    return text


def at_most(count: int) -> str:
    """What is to be known of so many; empty if they are canceled at once."""
    text = _("At most %(most)s tasks are canceled at once; then you are asked whether to go on.")
    return text % {"most": number(PURGED_AT_ONCE)} if count > PURGED_AT_ONCE else ""
