"""Filters and tags of the admin's templates for figures, times and links. A missing value is always shown as a dash."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any

from django import template
from django.template.defaultfilters import date
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext

from django_fairque.monitoring import formatting, redaction, translations

register = template.Library()
NOTHING = "–"
_WRITTEN_OUT = str.maketrans({char: f"%{ord(char):02X}" for char in "%\r\n\0"})


def in_form(value: str) -> str:
    """Return the ``value`` in the form for a hidden field or a checkbox."""
    # This code is not imported from the admin, because Django imports this module in projects without the admin too.
    return value.translate(_WRITTEN_OUT)


def _register_figure(write: Callable[[float], str]) -> None:
    """Register a filter under the function's name. The filter formats a figure with its unit."""

    @wraps(write)
    def written(value: Any) -> str:
        return NOTHING if value is None or value == "" else write(float(value))

    register.filter(write.__name__, written)


for formatter in (formatting.duration, formatting.rate, formatting.share, formatting.number, formatting.size):
    _register_figure(formatter)
for text_filter in (in_form, translations.word, translations.sentence):
    register.filter(text_filter.__name__, text_filter)


@register.filter
def about(value: Any) -> str:
    """Format a time that is known only approximately, such as a percentile: ``about 40 s``."""
    if value is None or value == "":
        return NOTHING
    shown = formatting.duration(formatting.rounded_time(float(value)))
    return gettext("about %(time)s") % {"time": shown} if float(value) else shown


@register.filter
def moment(value: Any, _form: str = "") -> str:
    """Format a `datetime` or a Unix time as a ``<time>`` element, which shows how long ago it was or how soon it will
    be.

    The title of the element is the time in Django's current time zone, with the zone's name. 0 counts as a missing
    value.
    """
    if not value:
        return NOTHING
    known = _localized(value)
    passed = time.time() - known.timestamp()
    if abs(passed) < 1:
        text = gettext("now")
    elif passed > 0:
        text = gettext("%(time)s ago") % {"time": formatting.age(passed)}
    else:
        text = gettext("in %(time)s") % {"time": formatting.age(-passed)}
    title = date(known, "Y-m-d H:i:s T")
    return format_html('<time datetime="{}" title="{}">{}</time>', known.isoformat(timespec="seconds"), title, text)


@register.filter
def clock(value: Any, form: str = "Y-m-d H:i:s") -> str:
    """Format a time as date and time of day, instead of the relative words of `moment`. For tables with many times."""
    known = _localized(value or 0)
    text = date(known, form)
    return format_html('<time datetime="{}">{}</time>', known.isoformat(timespec="seconds"), text) if value else NOTHING


@register.filter
def clock_and_age(value: Any) -> str:
    """Format a time as time of day, with the date if that is not today, and the words of `moment`: ``16:22:03 (3 min ago)``."""
    form = "H:i:s" if _localized(value or 0).date() == timezone.localdate() else "Y-m-d H:i:s"
    return format_html("{} ({})", date(_localized(value), form), moment(value)) if value else NOTHING


def _localized(value: Any) -> datetime:
    zone = timezone.get_current_timezone()
    known = value if isinstance(value, datetime) else datetime.fromtimestamp(float(value), tz=zone)
    return known.astimezone(zone) if timezone.is_aware(known) else timezone.make_aware(known, zone)


@register.filter
def redacted(text: Any) -> str:
    """Return an error or a traceback with secrets hidden."""
    return redaction.redacted_text(str(text or ""))


@register.simple_tag(takes_context=True)
def link(context: dict[str, Any], page: str, text: Any, **query: Any) -> str:
    """Return a text as a link to another page if the user has the permission to see the page: ``{% link 'users' user_id
    user=user_id %}``.

    The query may contain ``queue``. Empty parameters of the query are left out. If the text is a whole number, it gets
    thousands separators.
    """
    if text is None or text == "":
        return NOTHING
    if isinstance(text, int):
        text = formatting.number(text)
    url = context["page"].link(page, **{key: str(value) for key, value in query.items() if value not in (None, "")})
    return format_html('<a href="{}"><bdi>{}</bdi></a>', url, text) if url else format_html("<bdi>{}</bdi>", text)
