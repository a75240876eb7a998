"""The tokens of ``MONITOR``: one or several, from any source, never shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import FairQueueConfig
from django_fairque.conf.sources import find_misspelled_variables

if TYPE_CHECKING:
    from .conftest import Configure

SERVER = {"HOST": "nowhere"}
ONE, OTHER = "sixteen-letters!", 'with,comma[and]"quote"'


def tokens(config: FairQueueConfig) -> list[str]:
    return [each.get_secret_value() for each in config.monitor.token]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, []), ([], []), (ONE, [ONE]), ([ONE, OTHER], [ONE, OTHER]), ((ONE,), [ONE]), (OTHER, [OTHER])],
)
def test_monitor_tokens_are_read_from_settings(configure: Configure, given: Any, expected: list[str]) -> None:
    assert tokens(configure({"REDIS": SERVER, "MONITOR": {"TOKEN": given}})) == expected


@pytest.mark.parametrize(("given", "expected"), [(ONE, [ONE]), (f'["{ONE}", "{ONE}x"]', [ONE, ONE + "x"])])
def test_monitor_tokens_are_read_from_the_environment(configure: Configure, given: str, expected: list[str]) -> None:
    assert tokens(configure({"REDIS": SERVER}, FAIRQUE_MONITOR__TOKEN=given)) == expected


@pytest.mark.parametrize(
    "wrong", ["", "too-short", "a token with blanks in it", "a\u00e9-accented-token", [ONE, "x"], 5]
)
def test_a_wrong_token_is_explained_and_not_shown(configure: Configure, wrong: Any) -> None:
    error = configure.error({"REDIS": SERVER, "MONITOR": {"TOKEN": wrong}})
    assert 'settings.FAIRQUE["MONITOR"]["TOKEN"]' in error
    assert "expected a token" in error
    assert "got a value that is not shown" in error


def test_a_list_of_tokens_that_can_not_be_read_is_not_shown(configure: Configure) -> None:
    error = configure.error({"REDIS": SERVER}, FAIRQUE_MONITOR__TOKEN=f'["{ONE}')
    assert error.startswith("environment variable FAIRQUE_MONITOR__TOKEN: expected a token, or a list of tokens; got")
    assert ONE not in error


def test_a_variable_that_lacks_an_underscore_is_reported() -> None:
    found = list(find_misspelled_variables({"FAIRQUE_MONITOR_TOKEN": ONE, "FAIRQUE_MONITOR__TOKEN": ONE}))
    assert found == [("FAIRQUE_MONITOR_TOKEN", "FAIRQUE_MONITOR__TOKEN")]


def test_tokens_are_never_shown(configure: Configure) -> None:
    config = configure({"REDIS": SERVER, "MONITOR": {"TOKEN": [ONE, OTHER]}})
    assert ONE not in f"{config!r} {config} {config.model_dump()} {config.model_dump_json()}"


WEBHOOK = "https://hooks.example.com/services/T0/B0/secret-part"


def test_a_webhook_is_read_from_settings_and_the_environment(configure: Configure) -> None:
    webhook = configure({"REDIS": SERVER, "MONITOR": {"WEBHOOK": {"URL": WEBHOOK, "FORMAT": "slack"}}}).monitor.webhook
    assert webhook is not None
    assert (webhook.url.get_secret_value(), webhook.format) == (WEBHOOK, "slack")
    later = configure({"REDIS": SERVER}, FAIRQUE_MONITOR__WEBHOOK__URL=WEBHOOK).monitor.webhook
    assert later is not None
    assert later.format == "json"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "hooks.example.com/secret-part",
        "ftp://hooks.example.com/secret-part",
        "https:///secret-part",
        "https://user:secret-part@hooks.example.com/",
        "https://hooks.example.com:port/secret-part",
        "https://hooks.example.com/secret-part#there",
        "https://hooks.example.com/secret-part\r\nHost: other",
        5,
    ],
)
def test_a_wrong_webhook_is_explained_and_not_shown(configure: Configure, wrong: Any) -> None:
    error = configure.error({"REDIS": SERVER, "MONITOR": {"WEBHOOK": {"URL": wrong}}})
    assert 'settings.FAIRQUE["MONITOR"]["WEBHOOK"]["URL"]: expected an http:// or https:// URL' in error
    assert "secret-part" not in error


@pytest.mark.parametrize("wrong", [{"FORMAT": "teams", "URL": WEBHOOK}, {"URI": WEBHOOK}, WEBHOOK, {"FORMAT": "json"}])
def test_a_mistake_in_a_webhook_does_not_show_its_url(configure: Configure, wrong: Any) -> None:
    error = configure.error({"REDIS": SERVER, "MONITOR": {"WEBHOOK": wrong}})
    assert "WEBHOOK" in error
    assert "secret-part" not in error


def test_a_webhook_is_not_shown(configure: Configure) -> None:
    config = configure({"REDIS": SERVER, "MONITOR": {"WEBHOOK": {"URL": WEBHOOK}}})
    assert "secret-part" not in f"{config!r} {config} {config.model_dump()} {config.model_dump_json()}"
