from __future__ import annotations

import time
from typing import Any

import pytest

from django_fairque.conf import FairQueueConfig
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.task import Undecodable
from django_fairque.monitoring.redaction import (
    HIDDEN,
    REDACTION_MAX_DEPTH,
    TEXT_MAX_CHARACTERS,
    as_text,
    redact_value,
    redacted_text,
)
from tests.fixture_types import Settings


@pytest.fixture(autouse=True)
def default(settings: Settings) -> None:
    """A configuration that says nothing of it."""
    settings.FAIRQUE = {"REDIS": "redis://127.0.0.1:1/0"}


def test_secrets_are_hidden_wherever_they_are_nested() -> None:
    value = {"user": "ann", "Api_TOKEN": "t", "args": [{"password": {"old": 1}}, [{"x-Authorization": None}]], "n": 1}
    assert redact_value(value) == {
        "user": "ann",
        "Api_TOKEN": HIDDEN,
        "args": [{"password": HIDDEN}, [{"x-Authorization": HIDDEN}]],
        "n": 1,
    }
    assert value["Api_TOKEN"] == "t", "the value itself is left as it is"


@pytest.mark.parametrize(
    "key",
    [
        *("password", "token", "client_secret", "API-Key", "Authorization", "passwd", "DB_PWD", "ssh-passphrase"),
        *("Set-Cookie", "cookies", "sessionid", "session_data", "aws_credentials"),
    ],
)
def test_a_key_with_a_secret_word_is_hidden(key: str) -> None:
    assert redact_value({key: "x"}) == {key: HIDDEN}


@pytest.mark.parametrize("value", [None, 1, 1.5, True, "password", [], {}, ["password", "x"]])
def test_a_value_without_a_secret_key_is_kept(value: Any) -> None:
    assert redact_value(value) == value


def test_redact_setting_replaces_the_default_list_of_secret_words(settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": "redis://127.0.0.1:1/0", "REDACT": ["Iban"]}
    assert redact_value({"iban_of": 1, "password": 2}) == {"iban_of": HIDDEN, "password": 2}
    assert redact_value({"iban": 1, "pin": 2}, ["PIN"]) == {"iban": 1, "pin": HIDDEN}
    assert redact_value({"password": 2}, []) == {"password": 2}


def test_the_environment_sets_the_secret_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQUE_REDACT", "iban,pin")
    assert FairQueueConfig.from_settings().redact == ["iban", "pin"]


@pytest.mark.parametrize("words", [5, [""], {"a": 1}])
def test_invalid_secret_words_are_refused(settings: Settings, words: object) -> None:
    settings.FAIRQUE = {"REDIS": "redis://127.0.0.1:1/0", "REDACT": words}
    with pytest.raises(ConfigurationError, match="REDACT"):
        FairQueueConfig.from_settings()


def test_a_value_that_is_nested_too_deeply_is_hidden() -> None:
    value: Any = {"password": "deep"}
    for _level in range(2000):
        value = [value]
    shown = redact_value(value)
    for _level in range(REDACTION_MAX_DEPTH):
        (shown,) = shown
    assert shown == HIDDEN


def test_text_is_readable_and_cut() -> None:
    assert as_text({"ä": [1]}) == '{\n  "ä": [\n    1\n  ]\n}'
    text = as_text("x" * (TEXT_MAX_CHARACTERS + 8))
    assert text.endswith("\n… and 10 characters more")
    assert len(text) < TEXT_MAX_CHARACTERS + 50


def test_bytes_that_are_no_json_are_hidden() -> None:
    text = as_text(redact_value(Undecodable(b'{"password": "x', "payload can't be decoded: no end")))
    assert text == "15 bytes that are not shown: payload can't be decoded: no end"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("login failed: password=hunter2 host=db", f"login failed: password={HIDDEN} host=db"),
        ("Authorization: Bearer abc.def-1", f"Authorization: {HIDDEN}"),
        ("sent {'Authorization': 'Basic dTpw'}, got 403", f"sent {{'Authorization': {HIDDEN}}}, got 403"),
        ('{"api_key": "a\\"b", "n": 1}', f'{{"api_key": {HIDDEN}, "n": 1}}'),
        (r'"{\"token\": \"t t\", \"n\": 1}"', rf'"{{\"token\": {HIDDEN}, \"n\": 1}}"'),
        ("{'password': {'old': 1}, 'n': 1}", f"{{'password': {HIDDEN}, 'n': 1}}"),
        ("f(SECRET_TOKEN=b'x', n=1)", f"f(SECRET_TOKEN={HIDDEN}, n=1)"),
        ("GET /x?access_token=t&page=2", f"GET /x?access_token={HIDDEN}&page=2"),
        ("GET / Cookie: a=one; b=two-2; c= HTTP/1.1", f"GET / Cookie: {HIDDEN} HTTP/1.1"),
        ("Set-Cookie: sid=1; Path=/; Secure", f"Set-Cookie: {HIDDEN}; Secure"),
        (
            "passwd=1 pwd=2 passphrase: 3 credentials: 4",
            f"passwd={HIDDEN} pwd={HIDDEN} passphrase: {HIDDEN} credentials: {HIDDEN}",
        ),
        ("X-Api-Key: 12", f"X-Api-Key: {HIDDEN}"),
        ("can't reach redis://ann:p@ss@db:6379/0", f"can't reach redis://{HIDDEN}@db:6379/0"),
        ("https://ghp_1@example.org/x and https://b:c@d", f"https://{HIDDEN}@example.org/x and https://{HIDDEN}@d"),
        ("with bearer eyJhbGci.e30.x9 it failed", f"with bearer {HIDDEN} it failed"),
        ("password = 'no end", f"password = {HIDDEN}"),
        ("Secret:\tx\nnext line", f"Secret:\t{HIDDEN}\nnext line"),
    ],
)
def test_secrets_are_hidden_in_texts(text: str, shown: str) -> None:
    assert redacted_text(text) == shown
    assert redacted_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'size'",
        'if key == "a":',
        "the password is wrong",
        "duplicate key value violates unique constraint: DETAIL: Key (id)=(7) already exists.",
        "https://example.org/a@b",
        "Token::parse",
        "line\nnext",
        "",
    ],
)
def test_texts_without_secrets_are_kept(text: str) -> None:
    assert redacted_text(text) == text


def test_redact_setting_replaces_the_default_list_of_secret_words_for_texts(settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": "redis://127.0.0.1:1/0", "REDACT": ["i.ban"]}
    assert redacted_text("I.BAN=DE1 iiban=1 password=2") == f"I.BAN={HIDDEN} iiban=1 password=2"
    assert redacted_text("pin: 1, redis://a:b@c", ["PIN"]) == f"pin: {HIDDEN}, redis://{HIDDEN}@c"
    assert redacted_text("password=2, redis://a:b@c", []) == "password=2, redis://a:b@c"


@pytest.mark.parametrize(
    "part", ["key", "key=", "password='", '"key": {', "://", "://a:", "Bearer ", "token \\", "(key=(", "cookie: a=1; "]
)
def test_the_time_to_redact_a_text_grows_with_its_length_only(part: str) -> None:
    """Twenty times the text may take a hundred times the processor at most: squares would take 400 times."""

    def seconds(count: int) -> float:
        begin = time.thread_time()
        redacted_text(part * count)
        return time.thread_time() - begin

    redacted_text(part)
    least = min(seconds(1000) for _ in range(5))
    assert min(seconds(20_000) for _ in range(3)) < max(100 * least, 0.05)


def test_the_default_secret_words_apply_while_the_configuration_has_mistakes(settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URI": "redis://127.0.0.1:1/0"}, "REDACT": []}
    assert redact_value({"password": "x", "n": 1}) == {"password": HIDDEN, "n": 1}
    assert redacted_text("password=x, n=1") == f"password={HIDDEN}, n=1"
