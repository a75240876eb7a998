"""The catalogue's tasks, which know nothing of the queue that they run in."""

from __future__ import annotations

from typing import Any

import pytest
from catalogue.tasks import catalogue_everybody, catalogue_of
from library.models import Document

from django_fairque.testing import capture_tasks

SIZES = {"ann": (3, 1, 2), "ben": (7,)}


@pytest.fixture
def documents(db: None) -> None:
    Document.objects.bulk_create(
        Document(owner=owner, title=f"{lines}.py", text="", metrics={"lines": lines})
        for owner, sizes in SIZES.items()
        for lines in sizes
    )
    Document.objects.bulk_create([Document(owner="ann", title="new.py", text="")])


@pytest.mark.django_db
@pytest.mark.usefixtures("documents")
def test_a_catalogue_names_the_largest_documents() -> None:
    class Context:
        attempt = 1

    context: Any = Context()
    found: Any = catalogue_of.func(context, "ann", 2)
    assert found == {"owner": "ann", "documents": 3, "largest": [("3.py", 3), ("2.py", 2)], "attempt": 1}


@pytest.mark.django_db
@pytest.mark.usefixtures("queue", "documents")
def test_every_owner_s_catalogue_is_a_separate_task() -> None:
    with capture_tasks() as captured:
        catalogue_everybody.enqueue(most=1)
        assert captured.run() == 3
    everybody, *made = captured.tasks
    assert [task.user_id for task in captured.tasks] == ["default", "ann", "ben"]
    assert everybody.result == [made_task.id for made_task in made]
    assert [made_task.result["largest"] for made_task in made] == [[["3.py", 3]], [["7.py", 7]]]
