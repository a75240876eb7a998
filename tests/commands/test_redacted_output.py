"""Commands print no secrets without `--unredacted`."""

from __future__ import annotations

import pytest
from django.core.management import CommandError

from django_fairque.engine.model.task import Task
from django_fairque.monitoring.redaction import HIDDEN
from tests.fixture_types import FairQueue, Redis
from tests.leases import pop
from tests.stored_tasks import replace_payload

from .conftest import Bury, Run

ERROR = "refused: password=swordfish, redis://ann:swordfish@db/0"


@pytest.fixture
def entry(bury: Bury) -> str:
    try:
        raise ConnectionError(ERROR)  # noqa: TRY301 - an error with a traceback
    except ConnectionError as error:
        return bury(error, payload={"token": "swordfish", "order": 4711})


@pytest.mark.parametrize(
    "words", [("show", "{}"), ("list",), ("list", "--json"), ("groups",)], ids=["show", "list", "json", "groups"]
)
def test_dead_letters_are_shown_without_secrets(run: Run, entry: str, words: tuple[str, ...]) -> None:
    words = ("fairque_dlq", *(word.format(entry) for word in words))
    assert "swordfish" not in run(*words)
    assert "refused: password=" in run(*words)
    assert "swordfish" in run(*words, "--unredacted")


def test_a_task_is_shown_without_secrets(run: Run, queue: FairQueue, entry: str) -> None:
    words = ("fairque_task", "show", entry[:-2])
    shown = run(*words)
    assert "swordfish" not in shown
    assert f'payload   {{"token":"{HIDDEN}","order":4711}}' in shown
    assert 'payload   {"token":"swordfish","order":4711}' in run(*words, "--unredacted")


def test_results_and_passed_values_are_shown_without_secrets(run: Run, queue: FairQueue) -> None:
    queue.push_graph([Task.create("acme", 3, {}, task_id="a")], "r1")
    queue.xcom("r1").push("api_key", "swordfish")
    queue.finish(pop(queue), {"secret": "swordfish", "rows": 3})
    assert f'result    {{"secret": "{HIDDEN}", "rows": 3}}' in run("fairque_task", "show", "a")
    assert run("fairque_task", "xcom", "r1") == f'api_key  "{HIDDEN}"\n1 value\n'
    assert run("fairque_task", "xcom", "r1", "--unredacted") == 'api_key  "swordfish"\n1 value\n'


def test_a_payload_with_hidden_values_is_refused(run: Run, queue: FairQueue, entry: str) -> None:
    with pytest.raises(CommandError, match="show --unredacted"):
        run("fairque_dlq", "requeue", entry, "--payload", f'{{"token": "{HIDDEN}"}}')
    assert queue.dlq.count() == 1


def test_a_payload_that_is_no_json_is_hidden(run: Run, queue: FairQueue, entry: str, redis: Redis) -> None:
    replace_payload(redis, entry[:-2], b'{"token": "swordfish')
    for words in (("fairque_dlq", "show", entry), ("fairque_task", "show", entry[:-2])):
        shown = run(*words)
        assert "20 bytes that are not shown" in shown
        assert "swordfish" not in shown
        assert '{"token": "swordfish' in run(*words, "--unredacted")
