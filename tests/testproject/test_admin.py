"""The library's page in the admin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.urls import reverse
from django.utils import translation
from library.endless_day import NIGHTLY
from library.loading import submit
from library.models import Document
from library.tasks import analyse_document

from tests.admin.page_reader import log_in

if TYPE_CHECKING:
    from django.test import Client

    from django_fairque import FairQueue

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def document(queue: FairQueue) -> Document:
    submit("acme", {"a.py": "def f(): pass\n\n\n"})
    document: Document = Document.objects.get()
    analyse_document("acme", document.pk)
    return document


def test_the_document_list_shows_figures(admin_client: Client, document: Document) -> None:
    page = admin_client.get(reverse("admin:library_document_changelist")).content.decode()
    assert '<td class="field-lines">3</td>' in page
    assert '<td class="field-functions">1</td>' in page


def test_the_document_page_shows_the_text_and_its_figures(admin_client: Client, document: Document) -> None:
    page = admin_client.get(reverse("admin:library_document_change", args=[document.pk])).content.decode()
    assert "longest_line" in page
    assert "def f(): pass" in page


def test_an_admin_action_analyses_documents_again(admin_client: Client, document: Document, queue: FairQueue) -> None:
    before = queue.get_stats().states["queued"]
    data = {"action": "analyse_again", "_selected_action": [document.pk]}
    answer = admin_client.post(reverse("admin:library_document_changelist"), data, follow=True)
    assert "1 document will be analysed." in answer.content.decode()
    assert queue.get_stats().states["queued"] == before + 1


def test_a_document_that_is_added_by_hand_is_analysed(admin_client: Client, queue: FairQueue) -> None:
    data = {"owner": "acme", "title": "new.py", "text": "a = 1"}
    answer = admin_client.post(reverse("admin:library_document_add"), data)
    assert answer.status_code == 302
    assert Document.objects.get().status == Document.Status.QUEUED
    assert queue.get_stats().states["queued"] == 1


def test_a_text_that_is_changed_is_analysed_again_and_only_then(admin_client: Client, queue: FairQueue) -> None:
    document = Document.objects.create(owner="acme", title="a.py", text="a = 1")
    before = queue.get_stats().states["queued"]
    page = reverse("admin:library_document_change", args=[document.pk])
    data = {"owner": "acme", "title": "b.py", "text": document.text}
    assert admin_client.post(page, data).status_code == 302
    assert queue.get_stats().states["queued"] == before
    assert admin_client.post(page, {**data, "text": "a = 2"}).status_code == 302
    assert queue.get_stats().states["queued"] == before + 1
    document.refresh_from_db()
    assert document.status == Document.Status.QUEUED


def test_a_button_on_live_starts_a_nightly_job(admin_client: Client, queue: FairQueue) -> None:
    live, job = reverse("admin:django_fairque_live"), reverse("admin:library_nightly_job")
    assert f'action="{job}"' in admin_client.get(live).content.decode()
    with translation.override("ja"):
        assert "夜間ジョブ" in admin_client.get(live).content.decode()
    assert admin_client.get(job).status_code == 405
    answer = admin_client.post(job, follow=True)
    assert f"Nightly job: {len(NIGHTLY)} bulk tasks were sent" in answer.content.decode()
    assert "the last nightly job are still waiting" in admin_client.post(job, follow=True).content.decode()
    assert (queue.get_stats().lanes["bulk"].ready, queue.get_stats().users_ready) == (len(NIGHTLY), len(NIGHTLY))


def test_the_button_of_the_nightly_job_needs_a_permission(client: Client, queue: FairQueue) -> None:
    log_in(client, "view_user")
    assert "nightly-job" not in client.get(reverse("admin:django_fairque_live")).content.decode()
    assert client.post(reverse("admin:library_nightly_job")).status_code == 403
    assert queue.get_stats().states["queued"] == 0
