"""Writes the report of a user: a sentence for support in the reader's language, and tables as JSON and CSV."""

from __future__ import annotations

import csv
import json
from datetime import datetime, timezone
from io import StringIO
from typing import TYPE_CHECKING, Any

from django.template.defaultfilters import date
from django.utils.timezone import get_current_timezone, localdate
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_fairque.monitoring.formatting import duration, number, plain, rounded_time, table
from django_fairque.monitoring.redaction import redacted_line
from django_fairque.monitoring.report import history_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from django_fairque.engine.users.history import UserPeriod
    from django_fairque.engine.users.report import UserReport

FORMULA_STARTS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""Characters with which a formula begins in a spreadsheet. The last four are full-width forms of the first four."""
_FIGURES = (
    *("finished", "failed_attempts", "dead_letters", "sla_kept", "sla_missed"),
    *("sla_kept_percent", "wait_p50_seconds", "wait_p95_seconds"),
)
CSV_COLUMNS = ("user", "kind", "begin", *_FIGURES, "task", "error", "last")


def report_sentence(report: UserReport) -> str:
    """Return one sentence about the last hours that addresses the user as "you". The sentence contains no texts of
    errors and no other users.
    """
    parts = (_waits(report), _failures(report), _failed_attempts(report), _waiting(report))
    return _("%(sentence)s.") % {"sentence": "; ".join(filter(None, parts))}


def _waits(report: UserReport) -> str:
    count, wait = report.ended, report.recent.wait
    facts = {
        "count": number(count),
        "since": time_of_day(report.recent.begin),
        "wait": duration(rounded_time(wait.p50)),
        "most": duration(rounded_time(wait.p95)),
    }
    if not count:
        return _("None of your tasks has ended since %(since)s") % facts
    if not wait.count:
        text = ngettext(
            "Your task that ended since %(since)s never started",
            "Your %(count)s tasks that ended since %(since)s never started",
            count,
        )
    else:
        text = ngettext(
            "Your task that ended since %(since)s waited about %(wait)s",
            "Your %(count)s tasks that ended since %(since)s waited about %(wait)s (95 %% of starts: within about %(most)s)",
            count,
        )
    return text % facts


def _failures(report: UserReport) -> str:
    dead, known, errors = report.recent.dead, report.known_errors, len(report.errors)
    if not dead:
        return "" if not report.ended else _("none failed") if report.ended > 1 else _("it did not fail")
    failed = _("it failed") if report.ended == 1 else ngettext("%(count)s failed", "%(count)s failed", dead)
    if not known:
        details = ngettext("its error is not known", "their errors are not known", dead)
    elif known < dead:
        details = (
            ngettext(
                "the error of %(known)s is known, at %(since)s",
                "the errors of %(known)s are known, all the same, the earliest at %(since)s",
                known,
            )
            if errors == 1
            else _("the errors of %(known)s are known, %(errors)s different ones, the earliest at %(since)s")
        )
    elif dead == 1:
        details = _("at %(since)s")
    else:
        details = (
            _("all with the same error, since %(since)s")
            if errors == 1
            else _("with %(errors)s different errors, since %(since)s")
        )
    since = report.failing_since
    facts = {"known": number(known), "errors": number(errors), "since": "" if since is None else time_of_day(since)}
    return f"{failed % {'count': number(dead)}}, {details % facts}"


def _failed_attempts(report: UserReport) -> str:
    failed = report.recent.failed
    if failed <= report.recent.dead:
        return ""
    text = ngettext("%(count)s attempt failed in all", "%(count)s attempts failed in all", failed)
    return text % {"count": number(failed)}


def _waiting(report: UserReport) -> str:
    if not report.ready:
        return ""
    held_by, count = report.held_by or "", report.ready
    if held_by == "user_paused":
        text = ngettext(
            "%(count)s task waits because your tasks are paused",
            "%(count)s tasks wait because your tasks are paused",
            count,
        )
    elif held_by.endswith("_paused"):
        text = ngettext("%(count)s task waits because of a pause", "%(count)s tasks wait because of a pause", count)
    else:
        text = ngettext("%(count)s task waits now", "%(count)s tasks wait now", count)
    return text % {"count": number(count)}


def time_of_day(moment: float) -> str:
    """Format a time in Django's time zone: ``16:13 UTC``. If the day is not today, the date is added."""
    known = datetime.fromtimestamp(moment, tz=get_current_timezone())
    is_today = known.date() == localdate()
    return date(known, "H:i T" if is_today else "Y-m-d H:i T")


def report_lines(report: UserReport) -> Iterator[str]:
    """Yield the lines of the report for a terminal."""
    yield report_sentence(report)
    yield ""
    yield from history_lines(report.history)
    if report.errors:
        yield ""
        rows = [
            (number(group.count), format_utc(group.oldest), group.name, redacted_line(group.sample))
            for group in report.errors
        ]
        yield from table([("dead", "first", "task", "error"), *rows], align="<")


def report_json(report: UserReport, *, has_errors: bool = True) -> str:
    """Return the report as one JSON object. The texts of errors are included only with ``has_errors``."""
    content: dict[str, Any] = {
        "user": report.user_id,
        "queue": report.queue,
        "sentence": report_sentence(report),
        "ready": report.ready,
        "held_by": report.held_by,
        "recent": _figures(report.recent),
        "hours": [_figures(hour) for hour in report.history.hours],
        "days": [_figures(day) for day in report.history.days],
    }
    if has_errors:
        content |= {"errors": _errors(report), "errors_known": report.known_errors, "is_whole": report.is_whole}
    return json.dumps(content)


def report_csv(report: UserReport, *, has_errors: bool = True) -> str:
    """Return the report as CSV: a line for each hour and each day, the latest first, and a line for each error."""
    rows: list[dict[str, Any]] = [
        {"kind": kind, **_figures(period)}
        for kind, periods in (("hour", report.history.hours), ("day", report.history.days))
        for period in reversed(periods)
    ]
    rows += [{"kind": "error", **error} for error in (_errors(report) if has_errors else ())]
    return write_csv(CSV_COLUMNS, ({"user": report.user_id, **row} for row in rows))


def write_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV with these columns. If a text would begin a formula in a spreadsheet, an apostrophe is put before
    it.
    """
    output = StringIO()
    writer = csv.DictWriter(output, columns, extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return output.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return plain(f"'{value}" if value.startswith(FORMULA_STARTS) else value)


def _figures(period: UserPeriod) -> dict[str, Any]:
    starts, wait = period.sla_kept + period.sla_missed, period.wait
    counts = (period.finished, period.failed, period.dead, period.sla_kept, period.sla_missed)
    shares = (
        round(100 * period.sla_kept / starts, 2) if starts else None,
        *(round(seconds, 3) if wait.count else None for seconds in (wait.p50, wait.p95)),
    )
    return {
        "begin": format_utc(period.begin),
        "seconds": period.seconds,
        **dict(zip(_FIGURES, (*counts, *shares), strict=True)),
    }


def _errors(report: UserReport) -> list[dict[str, Any]]:
    return [
        {
            "begin": format_utc(group.oldest),
            "last": format_utc(group.newest),
            "dead_letters": group.count,
            "task": group.name,
            "type": group.failure_type.value,
            "error": redacted_line(group.sample),
            "fingerprint": group.fingerprint,
        }
        for group in report.errors
    ]


def format_utc(moment: float) -> str:
    """Format a Unix time in UTC, without fractions of a second."""
    return datetime.fromtimestamp(int(moment), tz=timezone.utc).isoformat().replace("+00:00", "Z")
