"""The build completes the pages of messages: one has every message of the package, the other explains the lines of the log."""

from __future__ import annotations

import pytest
from fairque_docs.messages import Message, completed, messages

from django_fairque.engine.transport.retry_policy import REFUSAL_REASONS
from tests.docs.blocks import DOCS


def complete_page(name: str) -> str:
    return completed((DOCS / f"{name}.md").read_text())


TROUBLESHOOTING = "".join(map(complete_page, ("contributing/log-messages", "guides/troubleshooting")))


def longest_part(text: str) -> str:
    return max(text.split("…"), key=len).strip(" :;,()\n")


def test_the_page_of_messages_has_each_message_below_its_kind() -> None:
    _, *sections = complete_page("contributing/messages").split("\n## ")
    found = {kind: text for kind, _, text in (section.partition("\n") for section in sections)}
    assert {message.kind for message in messages()} == set(found)
    assert [message for message in messages() if message.text not in found[message.kind]] == []


def test_a_page_without_a_mark_is_not_changed() -> None:
    assert completed("# A page\n") == "# A page\n"


# All words of these are filled in.
WITHOUT_WORDS = {"queue …: …", "queue …: …: …", "worker process … …"}


@pytest.mark.thorough
def test_every_line_of_the_log_is_explained() -> None:
    texts = {message.text for message in messages() if message.is_logged} - WITHOUT_WORDS
    assert [text for text in texts if longest_part(text) not in TROUBLESHOOTING] == []


@pytest.mark.parametrize("text", REFUSAL_REASONS.values(), ids=REFUSAL_REASONS)
def test_the_page_of_messages_explains_each_refusal_of_the_server(text: str) -> None:
    assert text.partition(";")[0] in TROUBLESHOOTING


@pytest.mark.parametrize(
    "message",
    [
        Message("TaskUsageError", "two tasks are named …: … and …; give one of them another name with @task(name=…)"),
        Message("WARNING", "the progress of task … could not be recorded"),
        Message("ERROR", "worker process … could not begin"),
    ],
)
def test_messages_are_found_in_the_source(message: Message) -> None:
    assert message in messages()
