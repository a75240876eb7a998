"""What the admin's templates say figures and moments with, and draw charts. What is missing is a dash everywhere."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import template
from django.utils import timezone
from django.utils.html import format_html

from django_fairque.admin.pages import base as posted
from django_fairque.monitoring import formatting, redaction
from django_fairque.monitoring import translations as words

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque.admin.charts import Bars, LineChart, Sparkline

register = template.Library()
NOTHING = "–"


def _formatted(how: Callable[[float], str], value: Any) -> str:
    return NOTHING if value is None or value == "" else how(float(value))


register.filter("in_form", posted.in_form)


@register.filter
def duration(seconds: Any) -> str:
    """Seconds: ``0.00123`` -> ``1.23 ms``."""
    return _formatted(formatting.duration, seconds)


@register.filter
def rate(per_second: Any) -> str:
    """A rate per second in readable units: ``0.5`` -> ``30 /min``."""
    return _formatted(formatting.rate, per_second)


@register.filter
def share(fraction: Any) -> str:
    """``0.25`` -> ``25 %``."""
    return _formatted(formatting.share, fraction)


@register.filter
def number(value: Any) -> str:
    """``1234567`` -> ``1,234,567``."""
    return _formatted(formatting.number, value)


@register.filter
def size(number_of_bytes: Any) -> str:
    """Bytes: ``2048`` -> ``2 KiB``."""
    return _formatted(formatting.size, number_of_bytes)


@register.filter
def moment(value: Any) -> str:
    """A `datetime`, or seconds since the epoch, as a ``<time>`` in the site's time zone. 0 is no moment either."""
    if not value:
        return NOTHING
    zone = timezone.get_current_timezone()
    if not isinstance(value, datetime):
        value = datetime.fromtimestamp(float(value), tz=zone)
    value = value.astimezone(zone) if timezone.is_aware(value) else timezone.make_aware(value, zone)
    text = f"{value:%Y-%m-%d %H:%M:%S}"
    return format_html('<time datetime="{}">{}</time>', value.isoformat(timespec="seconds"), text)


@register.filter
def word(value: Any) -> str:
    """A state, a kind of failure, where a schedule is from: in the reader's language."""
    return words.word(str(value))


@register.filter
def sentence(text: Any) -> str:
    """A reason of a queue's health, in the reader's language."""
    return words.sentence(str(text))


@register.filter
def redacted(text: Any) -> str:
    """An error, a traceback: secrets in it are hidden."""
    return redaction.redacted_text(str(text or ""))


@register.simple_tag(takes_context=True)
def link(context: dict[str, Any], page: str, text: Any, **query: Any) -> str:
    """A text that links to another page, for users with the permission to see it: ``{% link 'users' user_id user=user_id %}``.

    The query may hold ``queue``; what is empty in it is left out.
    """
    if text is None or text == "":
        return NOTHING
    url = context["page"].link(page, **{key: str(value) for key, value in query.items() if value not in (None, "")})
    return format_html('<a href="{}"><bdi>{}</bdi></a>', url, text) if url else format_html("<bdi>{}</bdi>", text)


@register.inclusion_tag("admin/django_fairque/chart_line.html")
def line_chart(chart: LineChart) -> dict[str, Any]:
    """Lines over time, with their figures as a table."""
    return {"chart": chart}


@register.inclusion_tag("admin/django_fairque/chart_spark.html")
def sparkline(chart: Sparkline) -> dict[str, Any]:
    """A small line for a cell of a table."""
    return {"chart": chart}


@register.inclusion_tag("admin/django_fairque/chart_bars.html")
def bars(chart: Bars) -> dict[str, Any]:
    """A table with a bar for each row."""
    return {"chart": chart}
