"""``fairque_docs`` prints what the pages have about a topic, without a server and without settings."""

from __future__ import annotations

import re

import pytest
from django.core.management import CommandError
from fairque_docs.messages import messages

from django_fairque import documentation
from tests.fixture_types import Settings

from .conftest import Run


@pytest.mark.parametrize("topic", ["E001", "e001", "fairque.E001"])
def test_a_check_is_printed_by_its_number(run: Run, settings: Settings, topic: str) -> None:
    settings.FAIRQUE = {"REDISS": {}}  # the mistake that E001 is about
    title, *facts = run("fairque_docs", topic).splitlines()
    assert title == "fairque.E001"
    assert facts == [
        "  what is wrong: a key, queue, worker or priority that does not exist",
        "  what to do: take the nearest one that is suggested, or look it up in settings",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ERROR fairque: the fork server of worker w-7 could not begin", "the fork server of worker"),
        (
            "queue mail: schedule nightly did not push its task: TaskValidationError: …",
            "change the schedule, or remove it",
        ),
        ("CommandError: the server's certificate is not trusted: self-signed", "SSL_CA_CERTS"),
        ("TaskNotRegisteredError", "see that the worker imports the module"),
        ("head start", "HEAD_START_SECONDS"),
        ("W052", "DEBUG"),
        ("result of a task", "page: manage.py fairque_docs guides/tasks"),  # a row of words that others use, no answer
    ],
)
def test_a_printed_message_is_explained(run: Run, line: str, words: str) -> None:
    assert words in run("fairque_docs", *line.split()).replace("\n    ", " ")


@pytest.mark.thorough
def test_topics_are_listed_without_an_argument_and_for_an_ambiguous_word(run: Run) -> None:
    listed = run("fairque_docs")
    for title in ("E001, E002", "BacklogFullError", "Nothing runs: ", "head start"):
        assert title in re.sub(r"\s+", " ", listed), title
    assert all(len(line) <= 110 for line in listed.splitlines())
    assert re.search(r"guides/workers, index, .*, tutorial$", re.sub(r"\s+", " ", listed.strip()))
    of_heading = run("fairque_docs", "Nothing", "runs")
    assert re.match(r"tasks stay queued\n  cause: no worker runs", of_heading)


def test_a_question_is_answered_by_parts_of_pages(run: Run) -> None:
    lines = run("fairque_docs", "retry", "with", "exponential", "backoff?").splitlines()
    assert lines[0].startswith("Retries and dead letters")
    assert "  page: manage.py fairque_docs guides/retries-and-errors" in lines
    assert len([line for line in lines if line.startswith("  page: ")]) == 5
    assert all(len(line) <= 110 for line in lines)


def test_a_page_is_printed_by_its_name(run: Run) -> None:
    assert run("fairque_docs", "guides/lanes") == documentation.page_text("guides/lanes")


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("BaklogFulError", r"nothing is found about 'BaklogFulError'; the nearest topics are: BacklogFullError"),
        ("%%%", r"nothing is found about '%%%'; use other words. fairque_docs without a topic lists all"),
        ("qzx " * 100_000, r"nothing is found about 'qzx qzx"),
    ],
    ids=["misspelled", "symbols", "long"],
)
def test_the_error_about_an_unknown_topic_suggests_the_most_similar_topic(run: Run, topic: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run("fairque_docs", topic)


@pytest.mark.slow  # the test takes 7 seconds
def test_every_message_is_found_by_its_text() -> None:
    lost = []
    for message in messages():
        text = message.text.splitlines()[0]
        if sum(len(part.strip()) for part in text.split("…")) >= documentation.MIN_MATCHED_LETTERS:
            found = documentation.find(text.replace("…", "'17'"))
            if not found:
                lost.append(text)
    assert lost == []
