"""With names that carry a hash of each file's content, pages name files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.core.management import call_command
from django.urls import reverse

from tests.fixture_types import Client, FairQueue, Settings

pytestmark = pytest.mark.django_db


@pytest.fixture
def collected(settings: Settings, tmp_path: Path) -> Path:
    """A folder into which all static files were collected, under hashed names."""
    settings.STATIC_ROOT = tmp_path / "static"
    backend = "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": backend}}
    settings.DEBUG = False
    call_command("collectstatic", interactive=False, verbosity=0)
    return tmp_path / "static"


def test_pages_name_collected_files(admin_client: Client, queue: FairQueue, collected: Path) -> None:
    text = admin_client.get(reverse("admin:django_fairque_overview")).content.decode()
    ours = re.findall(r'(?:href|src)="/static/(django_fairque/[^"]+)"', text)
    assert [re.sub(r"\.[0-9a-f]{12}\.", ".", name) for name in ours] == [
        *("django_fairque/admin.css", "django_fairque/vendor/idiomorph-0.8.0.min.js", "django_fairque/admin.js"),
        *("django_fairque/vendor/uPlot.min.css", "django_fairque/vendor/uPlot.iife.min.js", "django_fairque/charts.js"),
    ]
    for name in ours:
        assert re.search(r"\.[0-9a-f]{12}\.", name)
        assert (collected / name).is_file()


def test_collected_files_refer_to_no_other_site(collected: Path) -> None:
    """Collecting fails for a stylesheet that names a file that is not there; ours names no others, and none from afar."""
    for pattern in ("admin.*.css", "admin.*.js", "charts.*.js"):
        (file,) = (collected / "django_fairque").glob(pattern)
        text = file.read_text()
        assert "url(" not in text
        assert "//" not in re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)


def test_each_variable_of_the_stylesheet_has_a_fallback(collected: Path) -> None:
    """Themes other than Django's own do not define its variables; without a value lines are invisible and areas black."""
    (file,) = (collected / "django_fairque").glob("admin.*.css")
    text = file.read_text()
    defined = set(re.findall(r"(--[\w-]+):", text))
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) <= defined
