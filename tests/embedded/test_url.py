"""``embedded://`` and what it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from django_fairque.embedded import directory_from_url, is_embedded_url
from django_fairque.engine.model.errors import ConfigurationError

BASE = Path("/project")


@pytest.mark.parametrize(
    ("url", "directory"),
    [
        ("embedded://", "/project/.fairque"),
        ("embedded:///var/lib/queue", "/var/lib/queue"),
        ("embedded:///home/a b/queue", "/home/a b/queue"),
        ("embedded:///home/100%25/%23queue", "/home/100%/#queue"),
    ],
)
def test_an_embedded_url_names_a_directory(url: str, directory: str) -> None:
    assert is_embedded_url(url)
    assert directory_from_url(url, BASE) == Path(directory)


@pytest.mark.parametrize(
    "url",
    [
        "embedded:///",
        "embedded://queue",
        "embedded://var/lib",
        "embedded:///a?x=1",
        "embedded:///a#b",
        "redis://localhost",
    ],
)
def test_malformed_embedded_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="expected embedded:// or embedded:///absolute/dir, got"):
        directory_from_url(url, BASE)


@pytest.mark.parametrize("url", ["", "redis://localhost", "unix:///embedded:", "embedded"])
def test_other_urls_are_not_embedded(url: str) -> None:
    assert not is_embedded_url(url)
