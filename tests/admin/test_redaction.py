from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.admin.redaction import DEEPEST, HIDDEN, MOST_CHARACTERS, as_text, redacted
from django_fairque.conf import FairQueueConfig
from django_fairque.engine.errors import ConfigurationError
from django_fairque.engine.models import Undecodable

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture(autouse=True)
def default(settings: Settings) -> None:
    """A configuration that says nothing of it."""
    settings.FAIRQUE = {"REDIS": "redis://127.0.0.1:1/0"}


def test_secrets_are_hidden_wherever_they_are_nested() -> None:
    value = {"user": "ann", "Api_TOKEN": "t", "args": [{"password": {"old": 1}}, [{"x-Authorization": None}]], "n": 1}
    assert redacted(value) == {
        "user": "ann",
        "Api_TOKEN": HIDDEN,
        "args": [{"password": HIDDEN}, [{"x-Authorization": HIDDEN}]],
        "n": 1,
    }
    assert value["Api_TOKEN"] == "t", "the value itself is left as it is"


@pytest.mark.parametrize("key", ["password", "token", "client_secret", "API-Key", "Authorization"])
def test_the_words_that_are_looked_for(key: str) -> None:
    assert redacted({key: "x"}) == {key: HIDDEN}


@pytest.mark.parametrize("value", [None, 1, 1.5, True, "password", [], {}, ["password", "x"]])
def test_what_has_no_secret_key_is_kept(value: Any) -> None:
    assert redacted(value) == value


def test_own_words(settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": "redis://127.0.0.1:1/0", "REDACT": ["Iban"]}
    assert redacted({"iban_of": 1, "password": 2}) == {"iban_of": HIDDEN, "password": 2}
    assert redacted({"iban": 1, "pin": 2}, ["PIN"]) == {"iban": 1, "pin": HIDDEN}
    assert redacted({"password": 2}, []) == {"password": 2}


def test_words_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQUE_REDACT", "iban,pin")
    assert FairQueueConfig.from_settings().redact == ["iban", "pin"]


@pytest.mark.parametrize("words", [5, [""], {"a": 1}])
def test_words_that_are_none_are_refused(settings: Settings, words: object) -> None:
    settings.FAIRQUE = {"REDIS": "redis://127.0.0.1:1/0", "REDACT": words}
    with pytest.raises(ConfigurationError, match="REDACT"):
        FairQueueConfig.from_settings()


def test_what_is_too_deep_to_look_through_is_hidden() -> None:
    value: Any = {"password": "deep"}
    for _level in range(2000):
        value = [value]
    shown = redacted(value)
    for _level in range(DEEPEST):
        (shown,) = shown
    assert shown == HIDDEN


def test_text_is_readable_and_cut() -> None:
    assert as_text({"ä": [1]}) == '{\n  "ä": [\n    1\n  ]\n}'
    text = as_text("x" * (MOST_CHARACTERS + 8))
    assert text.endswith("\n… and 10 characters more")
    assert len(text) < MOST_CHARACTERS + 50


def test_of_what_is_no_json_nothing_is_shown() -> None:
    text = as_text(redacted(Undecodable(b'{"password": "x', "payload can't be decoded: no end")))
    assert text == "15 bytes that are not shown: payload can't be decoded: no end"
