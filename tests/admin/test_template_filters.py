"""What the templates' filters say."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from django.template import Context, Template

if TYPE_CHECKING:
    from pytest_django import Settings


def said(name: str, value: Any) -> str:
    return Template("{% load fairque_admin %}{{ value|" + name + " }}").render(Context({"value": value}))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("duration", 0.00123, "1.23 ms"),
        ("duration", 0, "0 s"),
        ("rate", 0.5, "30 /min"),
        ("share", 0.25, "25 %"),
        ("number", 1234567, "1,234,567"),
        ("size", 2048, "2 KiB"),
    ],
)
def test_figures_have_units(name: str, value: float, text: str) -> None:
    assert said(name, value) == text


@pytest.mark.parametrize("name", ["duration", "rate", "share", "number", "size", "moment"])
@pytest.mark.parametrize("value", [None, ""])
def test_what_is_missing_is_a_dash(name: str, value: str | None) -> None:
    assert said(name, value) == "–"


NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "value",
    [NOON.timestamp(), NOON, NOON.astimezone(timezone(timedelta(hours=-5))), NOON.replace(hour=21, tzinfo=None)],
)
def test_a_moment_is_told_in_the_sites_zone(value: Any, settings: Settings) -> None:
    settings.USE_TZ, settings.TIME_ZONE = True, "Asia/Tokyo"
    assert said("moment", value) == '<time datetime="2026-03-01T21:00:00+09:00">2026-03-01 21:00:00</time>'
