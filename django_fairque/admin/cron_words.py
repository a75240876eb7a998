"""The commonest schedules in sentences that can be translated; `cronsim` explains them all, in English."""

from __future__ import annotations

import re

from django.utils.dates import WEEKDAYS
from django.utils.translation import gettext as _
from django.utils.translation import ngettext


def cron_in_words(cron: str) -> str:
    """Every so many minutes, at a minute of each hour, at a time each day, on some days of the week, on a day of the
    month; anything else as it is written."""
    fields = cron.split()
    if len(fields) != 5:
        return cron
    minute, hour, day, month, weekday = fields
    if month != "*":
        return cron
    if hour == day == weekday == "*":
        return _within_the_hour(minute) or cron
    if not (minute.isdecimal() and hour.isdecimal()):
        return cron
    return _on_days(f"{int(hour):02}:{int(minute):02}", day, weekday) or cron


def _within_the_hour(minute: str) -> str:
    if minute == "*":
        return _("Every minute")
    if found := re.fullmatch(r"\*/([0-9]+)", minute):
        count = int(found[1])
        return (
            ""
            if not count or 60 % count
            else ngettext("Every %(count)d minute", "Every %(count)d minutes", count) % {"count": count}
        )
    return _("At minute %(minute)s of every hour") % {"minute": minute} if minute.isdecimal() else ""


def _on_days(time: str, day: str, weekday: str) -> str:
    if day == weekday == "*":
        return _("At %(time)s every day") % {"time": time}
    if day == "*":
        days = _weekdays(weekday)
        return _("At %(time)s on %(days)s") % {"time": time, "days": _(", ").join(days)} if days else ""
    if weekday == "*" and day.isdecimal():
        return _("At %(time)s on day %(day)s of every month") % {"time": time, "day": day}
    return ""


def _weekdays(text: str) -> list[str]:
    """The days' names, the week beginning on Sunday as in cron; none if they are written in another way."""
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-7])(?:-([0-7]))?", part)
        if found is None:
            return []
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            return []
        numbers += range(first, last + 1)
    return [str(WEEKDAYS[(number - 1) % 7]) for number in dict.fromkeys(number % 7 for number in numbers)]
