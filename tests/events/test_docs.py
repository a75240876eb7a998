"""docs/guides/model-events.md names the public functions and classes. Its examples run in tests/docs/test_guides.py."""

from __future__ import annotations

from pathlib import Path

from django_fairque import events

PAGE = Path(__file__).parent.parent.parent / "docs" / "guides" / "model-events.md"


def test_the_page_about_events_names_every_public_name() -> None:
    text = PAGE.read_text()
    for name in set(events.__all__) - {"Condition", "Declaration", "Event"}:
        assert name in text
