"""What `manage.py fairque_worker` makes of its options; tests/worker has what it does then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection

from django_fairque.conf import get_config, set_overrides
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.management.commands import fairque_worker
from tests.fixture_types import Settings

from .conftest import Terminal

USER_IDS = "expected user ids separated by commas, or * for everyone"
Start = Callable[..., dict[str, Any]]


@pytest.fixture
def start(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that parses a command line into the arguments of the `Supervisor`."""
    settings.FAIRQUE = {"REDIS": {"HOST": "nowhere"}, "QUEUES": {"mail": {}, "sms": {}}}
    made: dict[str, Any] = {}
    monkeypatch.setattr(fairque_worker, "Supervisor", lambda options, **more: made.update(more, options=options))

    def start(*words: str) -> dict[str, Any]:
        parser = fairque_worker.Command().create_parser("manage.py", "fairque_worker")
        typed = vars(parser.parse_args(words))
        fairque_worker._supervisor(fairque_worker._worker_options(typed), typed, copied=False)
        return made

    yield start
    set_overrides({})


@pytest.mark.parametrize(
    ("words", "queues"),
    [
        ("", ["default"]),
        ("--queue mail", ["mail"]),
        ("--queue default mail", ["default", "mail"]),
        ("--queue mail --queue sms", ["mail", "sms"]),
        ("--queue default mail --burst --queue sms", ["default", "mail", "sms"]),
    ],
)
def test_the_worker_option_queue_may_be_repeated(start: Start, words: str, queues: list[str]) -> None:
    assert list(start(*words.split())["options"].queues) == queues
    assert get_config().worker.queues == queues


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--users", ""], f"--users: {USER_IDS}; got ''"),
        (["--users", " , ", "--steal", "*"], f"--users: {USER_IDS}; got ' , '"),
        (["--users", "ann", "--steal", ","], f"--steal: {USER_IDS}; got ','"),
        (["--concurrency", "0"], "--concurrency: expected a whole number from 1 to 1000; got 0"),
        (
            ["--max-memory", "-1"],
            "--max-memory: expected a whole number of megabytes, at least 0 (0: no limit); got -1",
        ),
        (["--reserve", "bulk=1"], "--reserve, bulk: expected urgent or normal: no lane is lower than bulk"),
        (["--reserve", "urgent"], "--reserve, urgent: expected a whole number of slots, at least 0; got ''"),
        (
            ["--concurrency", "2", "--reserve", "urgent=1", "--reserve", "normal=1"],
            "--reserve: expected fewer slots than concurrency (2), so that each lane can use one; got 2",
        ),
        (["--start-method", "fork"], '--start-method: expected "auto", "spawn" or "forkserver"; got \'fork\''),
        (["--queue", "mial"], "--queue: unknown queue 'mial'; did you mean mail?"),
        (["--worker", "a b"], "--worker: expected a name without spaces and commas; got 'a b'"),
        (["--config", "/nowhere.yaml"], "--config: expected the path of a YAML file; /nowhere.yaml can't be read: "),
        (["--users", "ann", "--steal", "ann"], "--steal: expected users that are not in --users; got 'ann'"),
        (["--steal", "ann"], '--steal: expected nothing here, because users is "*" and leaves nobody to steal from'),
        (["--processes", "0", "--max-tasks", "-1"], "2 mistakes in the configuration\n- --processes: "),
    ],
)
def test_a_mistake_in_an_option_is_named_as_it_was_typed(start: Start, words: list[str], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        start(*words)
    assert str(caught.value).startswith(expected)


def test_slots_are_reserved_for_each_lane_by_options_or_settings(start: Start, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "WORKER": {"RESERVE": {"urgent": 2}}}
    assert start()["options"].reserve == {"urgent": 2}
    assert start("--reserve", "urgent=1", "--reserve", "normal=2")["options"].reserve == {"urgent": 1, "normal": 2}


def test_a_worker_without_users_is_refused(start: Start, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "WORKER": {"USERS": []}}
    with pytest.raises(ConfigurationError, match="this worker would serve nobody: expected user ids"):
        start()
    assert start("--steal", "ann")["options"].steal == ("ann",)
    assert start("--users", "ann", "--steal", "")["options"].steal == ()


@pytest.mark.parametrize(
    ("words", "debug", "stderr", "watches"),
    [
        ([], True, Terminal(), True),
        ([], True, StringIO(), False),
        ([], False, Terminal(), False),
        (["--burst"], True, Terminal(), False),
        (["--no-reload"], True, Terminal(), False),
        (["--reload", "--no-reload"], True, Terminal(), False),
        (["--reload"], False, StringIO(), True),
    ],
)
def test_the_worker_reloads_the_code_only_in_debug_mode_at_a_terminal_unless_an_option_decides(
    start: Start,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    debug: bool,
    stderr: StringIO,
    watches: bool,
) -> None:
    settings.DEBUG = debug
    monkeypatch.setattr(sys, "stderr", stderr)
    assert start(*words)["reload"] is watches


@pytest.mark.django_db
@pytest.mark.parametrize(("debug", "at_terminal", "found"), [(True, False, 1), (True, True, 0), (False, False, 0)])
def test_the_worker_warns_of_debug_mode_without_a_terminal(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    debug: bool,
    at_terminal: bool,
    found: int,
) -> None:
    settings.DEBUG, settings.FAIRQUE = debug, {"REDIS": {"HOST": "nowhere"}}
    monkeypatch.setattr(sys, "stderr", Terminal() if at_terminal else StringIO())
    fairque_worker.Command(stdout=StringIO())._check_databases()
    assert caplog.text.count("DEBUG is true: queries of a task are kept in memory until it ends") == found


def test_a_worker_starts_while_its_database_is_down(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("nobody listens")

    settings.FAIRQUE = {"REDIS": {"HOST": "nowhere"}, "OUTBOX": True}
    monkeypatch.setattr(fairque_worker.Command, "check_migrations", fail)
    monkeypatch.setattr(connection.introspection, "table_names", fail)
    fairque_worker.Command()._check_databases()


def test_unusable_middleware_is_reported_when_the_worker_starts(start: Start, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "MIDDLEWARE": ["no.such.Middleware"]}
    with pytest.raises(CommandError, match="dotted path of a subclass of TaskMiddleware"):
        call_command("fairque_worker", "--burst")
