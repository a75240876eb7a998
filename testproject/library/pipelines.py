"""The library's pipeline: ``parse every file`` → (``complexity figures`` | ``import graph``) → ``package report``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque import group

from .tasks import complexity_of, imports_of, parse_document, report_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque import Pipeline


def package_pipeline(owner: str, documents: Sequence[int]) -> Pipeline:
    """The pipeline of one package: two more stages than files, and a report."""
    files = group(parse_document.s(owner, pk) for pk in documents)
    return files >> (complexity_of.s(owner) | imports_of.s(owner)) >> report_on.s(owner)
