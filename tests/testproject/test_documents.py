"""Documents, and that saving one has it analysed: once, after the commit, with the right figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core import serializers
from django.db import IntegrityError, transaction
from library.analysis import analyse
from library.loading import load_files, send_errands, submit, submit_again
from library.models import Document
from library.tasks import analyse_document, run_errand

from django_fairque import Discard, FairQueue, TaskState

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = "def answer():\n    return 42\n"


def waiting(queue: FairQueue) -> list[tuple[str, str, Any]]:
    """Return the name, user and arguments of each queued task, in the order of sending."""
    tasks = sorted(queue.tasks(TaskState.QUEUED).items, key=lambda task: task.ready_at or 0)
    return [(task.name.rpartition(".")[2], task.user_id, task.payload["args"]) for task in tasks]


def new(owner: str = "acme", title: str = "a.py", text: str = TEXT) -> Document:
    document = Document(owner=owner, title=title, text=text)
    document.save()
    return document


class TestSaving:
    def test_saving_a_document_enqueues_its_analysis(self, queue: FairQueue) -> None:
        document = new()
        assert waiting(queue) == [("analyse_document", "acme", ["acme", document.pk])]
        assert document.status == Document.Status.QUEUED
        document.refresh_from_db()
        assert document.status == Document.Status.QUEUED
        assert document.queued_at is not None

    def test_the_analysis_is_sent_at_the_commit(self, queue: FairQueue) -> None:
        with transaction.atomic():
            document = new()
            assert waiting(queue) == []
        assert waiting(queue) == [("analyse_document", "acme", ["acme", document.pk])]

    def test_many_saves_of_a_document_in_a_transaction_are_one_analysis(self, queue: FairQueue) -> None:
        with transaction.atomic():
            document = new()
            for line in range(100):
                document.text += f"a = {line}\n"
                document.save()
        assert waiting(queue) == [("analyse_document", "acme", ["acme", document.pk])]
        analyse_document("acme", document.pk)
        document.refresh_from_db()
        assert document.metrics["lines"] == 102

    def test_saving_an_unchanged_document_sends_no_task(self, queue: FairQueue) -> None:
        document = new()
        document.save()
        document.save(update_fields=["text"])
        assert len(waiting(queue)) == 1

    def test_saving_only_the_text_of_a_document_resets_its_state(self, queue: FairQueue) -> None:
        document = new()
        analyse_document("acme", document.pk)
        document = Document.objects.defer("text").get()
        document.text = "b = 1"
        document.save(update_fields=["text"])
        document.refresh_from_db()
        assert (document.status, document.sha) == (Document.Status.QUEUED, document.digest())
        assert len(waiting(queue)) == 2

    def test_a_document_that_is_rolled_back_sends_no_task(self, queue: FairQueue) -> None:
        with transaction.atomic():
            new()
            transaction.set_rollback(True)
        assert waiting(queue) == []
        assert not Document.objects.exists()

    def test_documents_of_a_lost_savepoint_send_no_task(self, queue: FairQueue) -> None:
        with transaction.atomic():
            new(title="kept.py")
            with transaction.atomic():
                new(title="lost.py")
                transaction.set_rollback(True)
        assert [args for _, _, args in waiting(queue)] == [["acme", Document.objects.get().pk]]

    def test_saving_another_field_of_a_document_sends_no_task(self, queue: FairQueue) -> None:
        document = new()
        document.title = "b.py"
        document.save(update_fields=["title"])
        assert len(waiting(queue)) == 1

    def test_loading_documents_from_a_fixture_sends_no_task(self, queue: FairQueue) -> None:
        document = new()
        Document.objects.update(status=Document.Status.ANALYSED)
        document.refresh_from_db()
        fixture = serializers.serialize("json", [document])
        for read in serializers.deserialize("json", fixture):
            read.save()
        assert Document.objects.get().status == Document.Status.ANALYSED
        assert len(waiting(queue)) == 1

    def test_two_documents_of_an_owner_with_one_title_are_refused(self, queue: FairQueue) -> None:
        new()
        new(owner="another")
        with pytest.raises(IntegrityError):
            new()
        assert len(waiting(queue)) == 2


class TestTheAnalysis:
    @pytest.fixture(autouse=True)
    def _queue(self, queue: FairQueue) -> None:
        """Saving enqueues."""

    def test_an_analysis_stores_its_figures(self) -> None:
        document = new()
        timing = analyse_document("acme", document.pk)
        document.refresh_from_db()
        assert document.metrics == analyse(TEXT)
        assert document.status == Document.Status.ANALYSED
        assert document.analysed_at is not None
        assert document.queued_at is not None
        assert document.analysed_at > document.queued_at
        assert timing["took"] > 0

    def test_a_repeated_analysis_stores_the_same_figures(self) -> None:
        document = new()
        analyse_document("acme", document.pk)
        first = Document.objects.values("metrics", "status", "sha", "text").get()
        analyse_document("acme", document.pk)
        assert Document.objects.values("metrics", "status", "sha", "text").get() == first

    def test_the_analysis_of_a_deleted_document_is_discarded(self) -> None:
        with pytest.raises(Discard, match="document 404 of acme was deleted"):
            analyse_document("acme", 404)

    def test_an_analysis_stores_no_figures_of_a_text_that_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        document = new()

        def slow(text: str) -> dict[str, Any]:
            document.text = TEXT + TEXT
            document.save()
            return analyse(text)

        monkeypatch.setattr("library.tasks.analyse", slow)
        analyse_document("acme", document.pk)
        document.refresh_from_db()
        assert (document.status, document.metrics) == (Document.Status.QUEUED, {})

    def test_a_failed_analysis_is_shown_on_its_document(self, monkeypatch: pytest.MonkeyPatch) -> None:
        document = new()

        def broken(text: str) -> dict[str, Any]:
            raise ZeroDivisionError

        monkeypatch.setattr("library.tasks.analyse", broken)
        with pytest.raises(ZeroDivisionError):
            analyse_document("acme", document.pk)
        document.refresh_from_db()
        assert document.status == Document.Status.FAILED


class TestInBulk:
    def test_texts_in_bulk_are_stored_and_sent_in_one_transaction(self, queue: FairQueue) -> None:
        ids = submit("acme", {"b.py": TEXT, "a.py": ""})
        documents = Document.objects.filter(owner="acme", status=Document.Status.QUEUED)
        assert {document.title: document.text for document in documents} == {"b.py": TEXT, "a.py": ""}
        assert sorted(args for _, _, args in waiting(queue)) == sorted(["acme", document.pk] for document in documents)
        assert sorted(ids) == sorted(task.task_id for task in queue.tasks().items)

    def test_submitting_a_text_again_updates_its_document(self, queue: FairQueue) -> None:
        submit("acme", {"a.py": TEXT})
        analyse_document("acme", Document.objects.get().pk)
        submit("acme", {"a.py": "new = 1\n"})
        document = Document.objects.get()
        assert (document.text, document.status) == ("new = 1\n", Document.Status.QUEUED)
        assert len(waiting(queue)) == 2
        analyse_document("acme", document.pk)
        document.refresh_from_db()
        assert document.metrics["lines"] == 1

    def test_files_become_documents_in_slices(
        self, queue: FairQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("library.loading.SLICE", 2)
        files = [tmp_path / "pack" / f"{name}.py" for name in "abc"]
        files[0].parent.mkdir()
        for file in files:
            file.write_text(file.name)
        sent = list(load_files("pack", files, tmp_path))
        assert [len(some) for some in sent] == [2, 1]
        assert Document.objects.get(owner="pack", title="pack/b.py").text == "b.py"
        assert len(waiting(queue)) == 3

    def test_selected_documents_are_analysed_again(self, queue: FairQueue) -> None:
        Document.objects.bulk_create(Document(owner="acme", title=f"{number}.py", text=TEXT) for number in range(3))
        assert submit_again(Document.objects.exclude(title="0.py").defer("text")) == 2
        assert len(waiting(queue)) == 2
        assert Document.objects.filter(status=Document.Status.QUEUED).exclude(sha="").count() == 2

    def test_errands_are_sent_in_slices_and_run(self, queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("library.loading.ERRANDS", 2)
        assert [len(some) for some in send_errands("noisy", 3)] == [2, 1]
        assert waiting(queue) == [("run_errand", "noisy", ["noisy", number]) for number in range(3)]
        assert run_errand("noisy", 1)["took"] < 1
