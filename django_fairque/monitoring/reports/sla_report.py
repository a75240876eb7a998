"""Writes the SLA ledger: the words for causes in the reader's language, tables for terminals, JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext_lazy as _

from django_fairque.monitoring.formatting import number, share, table
from django_fairque.monitoring.reports.user_report import format_utc, write_csv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.users.sla_ledger import LateCause, SlaFigures, SlaLedger

CAUSES: Mapping[LateCause, StrOrPromise] = {
    "queue_paused": _("the queue was paused"),
    "user_paused": _("its user was paused"),
    "organization_paused": _("its organization was paused"),
    "no_worker": _("no worker ran, or the server did not answer"),
    "throttled": _("its user had used up its rate"),
    "limit_full": _("it waited at a limit by key"),
    "capped": _("its user ran as many tasks as it may"),
    "organization_capped": _("its organization ran as many tasks as it may"),
    "behind_own": _("its user had many tasks waiting"),
    "behind_users": _("no worker for it was free"),
}
"""The causes of late starts, as they were when the deadline passed."""
LEDGER_COLUMNS = ("kind", "name", "kept", "missed", "kept_percent", "at_risk", "late", "cause")


def describe_cause(figures: SlaFigures) -> str:
    """Return the largest cause of missed and late tasks, and its part if there are others; empty without a cause."""
    if figures.cause is None:
        return ""
    part = figures.all_causes[figures.cause] / sum(figures.all_causes.values())
    return str(CAUSES[figures.cause]) + (f" ({share(part)})" if part < 1 else "")


def ledger_rows(ledger: SlaLedger) -> Iterator[dict[str, Any]]:
    """Yield the rows of the ledger for programs."""
    for kind, rows in (("lane", ledger.lanes), ("user", ledger.users), ("task", ledger.tasks)):
        for row in rows:
            percent = None if row.kept_share is None else round(100 * row.kept_share, 2)
            figures = (kind, row.name, row.kept, row.missed, percent, row.at_risk, row.late, row.cause)
            yield {**dict(zip(LEDGER_COLUMNS, figures, strict=True)), "causes": dict(row.causes)}


def ledger_object(ledger: SlaLedger) -> dict[str, Any]:
    """Return the ledger as an object for JSON."""
    return {
        "hours": ledger.hours,
        "begin": format_utc(ledger.begin),
        "rows": list(ledger_rows(ledger)),
        "unlisted_missed": ledger.unlisted,
        "is_estimate": ledger.is_estimate,
        "missing_shards": list(ledger.missing_shards),
    }


def ledger_csv(ledger: SlaLedger) -> str:
    """Return the ledger as CSV: a line for each lane, user and task name."""
    return write_csv(LEDGER_COLUMNS, ledger_rows(ledger))


def ledger_lines(ledger: SlaLedger) -> Iterator[str]:
    """Yield the lines of the ledger for a terminal, in English."""
    for title, rows in (("lane", ledger.lanes), ("user", ledger.users), ("task", ledger.tasks)):
        cells = [
            (
                *(row.name or "(other names)", number(row.kept), number(row.missed)),
                "-" if row.kept_share is None else share(row.kept_share),
                *(number(row.at_risk), number(row.late), describe_cause(row)),
            )
            for row in rows
        ]
        yield from table([(title, "kept", "missed", "kept in %", "at risk", "late", "largest cause"), *cells])
        yield ""
    if ledger.unlisted:
        yield f"{number(ledger.unlisted)} missed tasks are of users that are not listed"
    if ledger.is_estimate:
        yield "at risk and late are estimates from a sample"
