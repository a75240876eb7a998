"""The pages work in a project's own admin site, registered by hand or by ``AdminConfig.default_site``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from django_fairque.admin.site import PAGES
from django_fairque.engine.model.task import Task
from tests.admin.page_reader import log_in
from tests.fixture_types import Client, FairQueue, Settings

ROOT = Path(__file__).parent.parent.parent
OWN_DEFAULT_SITE = """
import django
from django.conf import settings
from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig

class Office(AdminSite):
    site_header = "Office"

class OfficeConfig(AdminConfig):
    default_site = "__main__.Office"

settings.configure(
    SECRET_KEY="x" * 50,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "__main__.OfficeConfig", "django_fairque"],
)
django.setup()
from django.contrib import admin
from django_fairque.models import OutboxEntry, Queue
print(admin.site.site_header, admin.site.is_registered(Queue), admin.site.is_registered(OutboxEntry))
"""


@pytest.mark.django_db
def test_each_page_works_in_a_site_of_the_project_and_links_into_it(
    client: Client, queue: FairQueue, settings: Settings
) -> None:
    settings.ROOT_URLCONF = "tests.admin.own_site_urls"
    queue.push(Task.create("ann", 3, None, task_id="a"))
    staff = log_in(client)
    staff.is_superuser = True
    staff.save()
    for page in PAGES:
        if "<" not in page.path:
            response = client.get(f"/office/django_fairque/queue/{page.path}")
            text = response.content.decode()
            assert response.status_code == 200, page.name
            assert not re.findall(r'(?:href|action)="/admin/[^"]*"', text), page.name
    assert client.get("/office/django_fairque/queue/").status_code == 200
    assert client.get("/office/django_fairque/outboxentry/").status_code == 200
    assert "/office/django_fairque/" in client.get("/office/").content.decode()


def test_the_pages_are_in_the_default_site_of_a_project() -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", OWN_DEFAULT_SITE],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == ["Office", "True", "True"]
