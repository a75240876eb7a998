"""The templates' filters turn values into texts."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.template import Context, Template

from tests.fixture_types import Settings


def rendered(name: str, value: Any) -> str:
    return Template("{% load fairque_admin %}{{ value|" + name + " }}").render(Context({"value": value}))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("duration", 0.00123, "1.23 ms"),
        ("about", 0, "0 s"),
        ("about", 0.00123, "about 1.2 ms"),
        ("about", 37.9, "about 40 s"),
        ("about", 73, "about 1 min"),
        ("about", 6000, "about 1 h 30 min"),
        ("about", 1520, "about 25 min"),
        ("rate", 0.5, "30 /min"),
        ("share", 0.25, "25 %"),
        ("number", 1234567, "1,234,567"),
        ("size", 2048, "2 KiB"),
    ],
)
def test_figures_are_shown_with_their_units(name: str, value: float, text: str) -> None:
    assert rendered(name, value) == text


@pytest.mark.parametrize("name", ["duration", "about", "rate", "share", "number", "size", "moment", "clock"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_value_is_a_dash(name: str, value: str | None) -> None:
    assert rendered(name, value) == "–"


NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "value",
    [NOON.timestamp(), NOON, NOON.astimezone(timezone(timedelta(hours=-5))), NOON.replace(hour=21, tzinfo=None)],
)
def test_a_moment_is_relative_with_the_sites_time_and_zone(value: Any, settings: Settings) -> None:
    settings.USE_TZ, settings.TIME_ZONE = True, "Asia/Tokyo"
    text = rendered("moment", value)
    assert text.startswith('<time datetime="2026-03-01T21:00:00+09:00" title="2026-03-01 21:00:00 JST">')
    assert rendered("clock", value) == '<time datetime="2026-03-01T21:00:00+09:00">2026-03-01 21:00:00</time>'


@pytest.mark.parametrize(
    ("passed", "text"),
    [(0.2, "now"), (7.5, "7 s ago"), (4000, "1 h ago"), (200_000, "2 d ago"), (-95, "in 1 min"), (-7200.5, "in 2 h")],
)
def test_a_moment_is_described_relative_to_now(passed: float, text: str) -> None:
    assert f">{text}</time>" in rendered("moment", time.time() - passed)
