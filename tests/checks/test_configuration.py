"""Mistakes in the configuration: each kind has its number."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core import checks

from django_fairque.conf import current

from .conftest import ids

if TYPE_CHECKING:
    from pytest_django import Settings

    from .conftest import Check

HERE = {"HOST": "localhost"}
SCHEDULE = {"TASK": "shop.report", "CRON": "0 3 * * *"}


def test_a_good_configuration_has_no_message(check: Check) -> None:
    assert check({"REDIS": HERE, "WORKER": {"QUEUES": ["default"]}}) == []


@pytest.mark.parametrize(
    ("fairque", "number"),
    [
        ({"REDIS": HERE, "QUEU": {}}, "E001"),
        ({"REDIS": HERE, "WORKER": {"QUEUES": ["male"]}, "QUEUES": {"mail": {}}}, "E001"),
        ({"REDIS": {"PORT": "x"}}, "E002"),
        ({"REDIS": HERE, "SCHEDULES": {"a": {**SCHEDULE, "TIMEZONE": "Mars"}}}, "E002"),
        ({"REDIS": HERE, "WORKER": {"USERS": ["a"], "STEAL": ["a"]}}, "E003"),
        ({"REDIS": {**HERE, "SOCKET_TIMEOUT": 6.9}}, "E003"),
        ({"REDIS": HERE, "WORKER": {"POLL_INTERVAL": 13.1}}, "E003"),
        ({"REDIS": HERE, "CONFIG_FILE": "nowhere.yaml"}, "E004"),
        ({"REDIS": {"CACHE": "nowhere"}}, "E006"),
        ({"REDIS": HERE, "SCHEDULES": {"a": {**SCHEDULE, "CRON": "0 0 30 2 *"}}}, "E012"),
        ({"REDIS": HERE, "SCHEDULES": {"a": {**SCHEDULE, "CRON": "nightly"}}}, "E012"),
        ({"REDIS": HERE, "PLANS": {"free": {"RUNNING": 2}}}, "E001"),
        ({"REDIS": HERE, "PLANS": {"free": {"RATE": "60"}}}, "E002"),
        ({"REDIS": HERE, "PLANS": {"free": {"MAX_RUNNING": 0}}}, "E002"),
        ({"REDIS": HERE, "PLANS": {"free plan": {}}}, "E002"),
        ({"REDIS": HERE, "PLANS": {"free": {"BURST": 2}}}, "E003"),
        ({"REDIS": HERE, "PLANS": {"free": {}}, "PLAN_OF": "no.such.function"}, "E019"),
        ({"REDIS": HERE, "PLANS": {"free": {}}, "PLAN_OF": "builtins.__name__"}, "E019"),
        ({"REDIS": HERE, "PLANS": {"free": {}}, "PLAN_OF": "tests.tasks.plans.plan_in_a_coroutine"}, "E019"),
        ({"REDIS": HERE, "PLAN_OF": "tests.tasks.plans.plan_of"}, "E019"),
    ],
)
def test_each_kind_of_configuration_mistake_has_a_number(check: Check, fairque: Any, number: str) -> None:
    (message,) = check(fairque)
    assert isinstance(message, checks.Error)
    assert ids([message]) == [number]


@pytest.mark.parametrize(
    "fairque",
    [
        {"REDIS": {**HERE, "SOCKET_TIMEOUT": 7}},
        {"REDIS": HERE, "WORKER": {"POLL_INTERVAL": 13}},
        {"REDIS": HERE, "WORKER": {"QUEUES": ["mail"]}, "QUEUES": {"mail": {}}},
        {"REDIS": HERE, "PLANS": {"free": {"RATE": "60/m", "BURST": 2}}, "PLAN_OF": "tests.tasks.plans.plan_of"},
    ],
)
def test_settings_at_their_limits_pass_the_checks(check: Check, fairque: Any) -> None:
    assert check(fairque) == []


@pytest.mark.parametrize("cron", ["0 0 29 2 *", "0 3 * * mon-fri"])
def test_a_cron_that_fires_on_a_rare_date_passes_the_checks(check: Check, cron: str) -> None:
    (message,) = check({"REDIS": HERE, "SCHEDULES": {"a": {**SCHEDULE, "CRON": cron}}})
    assert ids([message]) == ["E010"]  # only that nobody has such a task
    assert "no task named 'shop.report'" in message.msg


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6 *", "* * */20 * 1L"])
def test_a_cron_that_never_fires_is_named(check: Check, cron: str) -> None:
    (message,) = check({"REDIS": HERE, "SCHEDULES": {"a": {**SCHEDULE, "CRON": cron}}})
    assert message.msg.startswith('settings.FAIRQUE["SCHEDULES"]["a"]["CRON"]: the cron expression')
    assert "never fires" in message.msg


def test_each_configuration_mistake_has_a_message(check: Check) -> None:
    messages = check({"REDIS": HERE, "QUEUE": {"PREFX": 1, "SHARDS": 999}}, FAIRQUE_WORKER__PROCESSES="x")
    assert ids(messages) == ["E001", "E002", "E002"]
    assert {message.msg for message in messages if message.id == "fairque.E001"} == {
        'settings.FAIRQUE["QUEUE"]["PREFX"]: unknown key; did you mean PREFIX?'
    }


class TestNoServer:
    def test_a_missing_server_is_an_error_in_production(self, check: Check) -> None:
        assert ids(check({})) == ["E005"]

    def test_a_missing_server_is_no_error_in_development(self, check: Check, settings: Settings) -> None:
        settings.DEBUG = True
        assert check({}) == []

    def test_a_missing_server_is_no_error_in_a_test_run(self, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(current, "interceptors", [])
        assert check({}) == []
        assert ids(check({"QUEU": {}})) == ["E001"]


class TestVariables:
    def test_a_variable_with_a_single_underscore_is_a_warning(self, check: Check) -> None:
        (message,) = check(
            {"REDIS": HERE},
            FAIRQUE_REDIS_URL="redis://:hunter2@h",
            FAIRQUE_REDIS_PORT="tcp://10.0.0.1:6379",
            FAIRQUE_SERVER_BIN="/bin/x",
        )
        assert isinstance(message, checks.Warning)
        assert ids([message]) == ["W001"]
        assert "FAIRQUE_REDIS_URL" in message.msg
        assert "Did you mean FAIRQUE_REDIS__URL?" in str(message.hint)
        assert "hunter" not in str(message)

    @pytest.mark.parametrize(("name", "meant"), [("TRACNG", "TRACING"), ("ENQUEUE_ONCOMMIT", "ENQUEUE_ON_COMMIT")])
    def test_a_misspelled_variable_is_a_warning_with_a_suggestion(self, check: Check, name: str, meant: str) -> None:
        variables: dict[str, Any] = {f"FAIRQUE_{name}": "true", f"FAIRQUE_{meant}": "false"}
        (message,) = check({"REDIS": HERE}, **variables)
        assert ids([message]) == ["W001"]
        assert f"Did you mean FAIRQUE_{meant}?" in str(message.hint)

    @pytest.mark.parametrize(
        "name", ["FAIRQUE_PORT", "FAIRQUE_SERVICE_HOST", "FAIRQUE_SETTINGS", "FAIRQUE_", "FAIRQUE"]
    )
    def test_environment_variables_of_other_software_are_no_mistake(self, check: Check, name: str) -> None:
        variables: dict[str, Any] = {name: "1"}
        assert ids(check({"REDIS": HERE}, **variables)) == []

    def test_a_missing_server_and_a_misnamed_variable_are_both_reported(self, check: Check) -> None:
        assert ids(check({}, FAIRQUE_REDIS_URL="redis://h")) == ["E005", "W001"]


class TestSweepIntervals:
    @pytest.mark.parametrize("value", [30, "30", timedelta(seconds=30)])
    def test_a_sweep_interval_that_is_too_long_is_a_warning(self, check: Check, value: object) -> None:
        first, second = check(
            {"REDIS": HERE, "QUEUE": {"SWEEP_INTERVAL": value}, "QUEUES": {"mail": {"QUEUE_CLEANUP_INTERVAL": 3600}}}
        )
        assert ids([first, second]) == ["W015", "W015"]
        assert first.msg.startswith("QUEUE.SWEEP_INTERVAL is 30 seconds and is reduced to 5")
        assert second.msg.startswith("QUEUES.mail.SWEEP_INTERVAL is 3600 seconds")

    def test_the_largest_sweep_interval_passes_the_checks(self, check: Check) -> None:
        assert check({"REDIS": HERE, "QUEUE": {"SWEEP_INTERVAL": 5}}) == []


@pytest.mark.parametrize("path", ["nowhere.to.be.Found", "os.getcwd"])
@pytest.mark.parametrize("deploy", [True, False])
def test_a_credential_provider_that_can_not_be_used_is_an_error(check: Check, path: str, deploy: bool) -> None:
    redis = {"HOST": "localhost", "CREDENTIAL_PROVIDER": path}
    (error,) = check({"REDIS": redis}, deploy=deploy)
    assert ids([error]) == ["E018"]
    assert path in error.msg


def test_a_valid_credential_provider_passes_the_checks(check: Check) -> None:
    redis = {"HOST": "localhost", "CREDENTIAL_PROVIDER": "redis.credentials.UsernamePasswordCredentialProvider"}
    assert check({"REDIS": redis}) == []
