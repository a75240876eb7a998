"""docs/contributing/messages.md has every message; log-messages.md and troubleshooting.md explain those of the log and of the
server.
"""

from __future__ import annotations

import pytest

from django_fairque.engine.transport.retry_policy import REFUSAL_REASONS
from tests.docs.blocks import DOCS
from tests.tools.messages import PAGE, Message, messages, page

TROUBLESHOOTING = "".join(
    (DOCS / each).read_text() for each in ("contributing/log-messages.md", "guides/troubleshooting.md")
)


def longest_part(text: str) -> str:
    return max(text.split("…"), key=len).strip(" :;,()\n")


def test_the_page_of_messages_is_as_the_source() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.tools.messages"


# Their words are in what is filled in.
WITHOUT_WORDS = {"queue …: …", "queue …: …: …", "worker process … …"}


def test_every_line_of_the_log_is_explained() -> None:
    texts = {each.text for each in messages() if each.is_logged} - WITHOUT_WORDS
    assert [text for text in texts if longest_part(text) not in TROUBLESHOOTING] == []


@pytest.mark.parametrize("text", REFUSAL_REASONS.values(), ids=REFUSAL_REASONS)
def test_what_the_server_refuses_is_explained(text: str) -> None:
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
