"""The options of a queue: defaults, limits, and errors that say what to write."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.options import (
    DEFAULT_SLA,
    MAX_SWEEP_INTERVAL_SECONDS,
    InvalidOptionsError,
    QueueConfig,
)
from django_fairque.engine.model.priority import Priority

if TYPE_CHECKING:
    from tests.conf.conftest import Configure


def error(**options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        QueueConfig(**options)
    return str(caught.value)


def test_the_options_of_a_queue_have_defaults() -> None:
    config = QueueConfig()
    assert config.model_dump() == {
        "prefix": "fq",
        "shards": 1,
        "fair_by": "time",
        "head_start_seconds": 21600,
        "default_task_timeout": None,
        "default_max_retries": 3,
        "max_retry_attempts": 100,
        "retry_base_seconds": 1,
        "max_payload_bytes": 262144,
        "max_deliveries": 5,
        "max_backlog": 0,
        "max_backlog_bytes": 0,
        "max_result_bytes": 100_000_000,
        "max_dead_letters": 10_000,
        "max_xcom_bytes": 10_000_000,
        "result_ttl": 86400,
        "failed_ttl": 604800,
        "sla": {"CRITICAL": 300, "VERY_HIGH": 1800, "HIGH": 1800, "NORMAL": 7200, "LOW": 86400, "VERY_LOW": 86400},
        "starvation": {"VERY_LOW": 86400, "LOW": 86400, "NORMAL": 14400},
        "lanes": {"normal": 0.5, "bulk": 0.05, "urgent_priority": None, "bulk_priority": None},
        "pipeline_batch_size": 300,
        "request_timeout": 10,
        "replicas_to_confirm": 0,
        "sweep_interval": 1,
    }


CONSTANTS = {
    "lease_seconds": 30,
    "retry_cap_seconds": 3600,
    "retry_jitter": 0.1,
    "user_ttl": 3600,
    "sla_at_risk_seconds": 300,
    "replication_timeout": 1,
    "sweep_batch_size": 100,
    "stats_minutes_ttl": 90000,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_only_code_changes_a_constant(name: str, configure: Configure) -> None:
    assert getattr(QueueConfig(), name) == CONSTANTS[name]
    value = 0.5 if name == "retry_jitter" else 90
    assert getattr(QueueConfig.model_validate({name: value}), name) == value
    for section in ({"QUEUE": {name: value}}, {"QUEUES": {"mail": {name: value}}}):
        assert f'["{name.upper()}"]: unknown key; ' in configure.error({"REDIS": {"HOST": "h"}, **section})


def test_each_constant_is_listed_here() -> None:
    assert set(QueueConfig.model_fields) - set(QueueConfig.option_names()) == set(CONSTANTS)


def test_durations_of_any_type_are_stored_as_floats() -> None:
    config = QueueConfig.model_validate({"lease_seconds": 5, "result_ttl": "60", "user_ttl": timedelta(minutes=2)})
    assert (config.lease_seconds, config.result_ttl, config.user_ttl) == (5.0, 60.0, 120.0)
    assert all(type(value) is float for value in (QueueConfig().lease_seconds, config.lease_seconds, config.result_ttl))


def test_the_options_of_a_queue_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        QueueConfig().prefix = "other"


class TestMistakes:
    def test_a_single_mistake_is_one_line(self) -> None:
        assert error(fair_by="turns") == 'QueueConfig.fair_by: expected "time" or "tasks"; got \'turns\''

    def test_all_mistakes_in_the_options_of_a_queue_are_found_at_once(self) -> None:
        lines = error(prefix="a{b}", max_deliveries=0, retry_jitter=2, lease_seconds=0).splitlines()
        assert lines[0] == "4 mistakes in the configuration"
        assert sorted(line.partition(": ")[0] for line in lines[1:]) == [
            "- QueueConfig.lease_seconds",
            "- QueueConfig.max_deliveries",
            "- QueueConfig.prefix",
            "- QueueConfig.retry_jitter",
        ]

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"prefix": ""}, "expected 1 to 32 letters, digits"),
            ({"prefix": "a:b"}, "got 'a:b'"),
            ({"prefix": "a\n"}, r"got 'a\n'"),
            ({"prefix": "x" * 33}, "expected 1 to 32 letters"),
            ({"prefix": None}, "got None"),
            (
                {"head_start_seconds": -1},
                "expected a number of seconds from 0 and at most 315360000 (ten years); got -1",
            ),
            ({"lease_seconds": 0}, "expected a number of seconds greater than 0"),
            ({"lease_seconds": float("nan")}, "got nan"),
            ({"lease_seconds": float("inf")}, "got inf"),
            ({"lease_seconds": 1e12}, "at most 315360000 (ten years); got 1000000000000.0"),
            ({"lease_seconds": "soon"}, "got 'soon'"),
            ({"default_max_retries": 2.5}, "expected a whole number from 0 to 1000; got 2.5"),
            ({"default_max_retries": True}, "expected a whole number from 0 to 1000; got True"),
            ({"retry_jitter": 1.01}, "expected a fraction from 0 to 1; got 1.01"),
            ({"max_payload_bytes": 8 * 1024 * 1024 + 1}, "expected a whole number from 1 to 8388608; got 8388609"),
            ({"max_backlog": -1}, "expected a whole number of tasks per user, at least 0 (0: no limit); got -1"),
            ({"result_ttl": 59}, "expected a number of seconds from 60"),
            ({"failed_ttl": 59}, "expected a number of seconds from 60"),
            ({"pipeline_batch_size": 1001}, "expected a whole number from 1 to 1000; got 1001"),
            ({"sweep_batch_size": 0}, "expected a whole number from 1 to 1000; got 0"),
            ({"shards": 999}, "expected a whole number from 1 to 256; got 999"),
            ({"max_deliveries": [5]}, "got a list of 1"),
            ({"max_deliveries": {}}, "got a mapping of 0"),
            ({"max_deliveries": object()}, "got a object"),
        ],
    )
    def test_a_mistake_names_the_expected_and_the_given_value(self, options: dict[str, Any], expected: str) -> None:
        (name,) = options
        message = error(**options)
        assert message.startswith(f"QueueConfig.{name}: expected ")
        assert expected in message

    def test_a_long_value_is_cut(self) -> None:
        assert "x" * 80 + "..." in error(fair_by="x" * 500)
        assert "x" * 81 not in error(fair_by="x" * 500)

    def test_an_unknown_key_is_refused_with_the_nearest_known_key(self) -> None:
        assert error(max_delivery=5) == "QueueConfig.max_delivery: unknown key; did you mean max_deliveries?"

    def test_an_unknown_key_without_a_similar_one_is_refused_with_all_keys(self) -> None:
        message = error(zzz=5)
        assert message.startswith("QueueConfig.zzz: unknown key; expected one of prefix, shards, ")
        assert all(name in message for name in QueueConfig.option_names())

    def test_options_of_a_queue_that_contradict_each_other_are_refused(self) -> None:
        message = error(retry_base_seconds=3601, default_max_retries=7, max_retry_attempts=6)
        assert "retry_base_seconds: expected at most 3600, the longest pause before a retry; got 3601" in message
        assert "default_max_retries: expected at most max_retry_attempts (6); got 7" in message

    def test_options_that_are_no_mapping_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="QueueConfig: expected a mapping of options; got 5"):
            QueueConfig.model_validate(5)

    def test_an_error_in_the_options_can_be_pickled(self) -> None:
        with pytest.raises(InvalidOptionsError) as caught:
            QueueConfig(prefix="{}")
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (str(copy), copy.mistakes) == (str(caught.value), caught.value.mistakes)


class TestLanes:
    def test_lanes_may_be_given_in_part_and_in_any_case(self) -> None:
        lanes = QueueConfig.model_validate({"lanes": {"BULK": 0.1, "urgent_priority": "CRITICAL"}}).lanes
        assert (lanes.normal, lanes.bulk, lanes.urgent_priority, lanes.bulk_priority) == (0.5, 0.1, "CRITICAL", None)

    def test_a_queue_keeps_the_values_for_all_queues_that_it_does_not_give(self, configure: Configure) -> None:
        config = configure(
            {
                "REDIS": {"HOST": "h"},
                "QUEUE": {"LANES": {"NORMAL": 0.6, "URGENT_PRIORITY": "CRITICAL"}},
                "QUEUES": {"mail": {"LANES": {"BULK": 0.2}}, "other": {}},
            },
            FAIRQUE_QUEUES__MAIL__LANES__BULK_PRIORITY="LOW",
        )
        mail, other = config.queue_config("mail").lanes, config.queue_config("other").lanes
        assert (mail.normal, mail.bulk, mail.urgent_priority, mail.bulk_priority) == (0.6, 0.2, "CRITICAL", "LOW")
        assert (other.normal, other.bulk, other.urgent_priority, other.bulk_priority) == (0.6, 0.05, "CRITICAL", None)

    @pytest.mark.parametrize(
        ("lanes", "expected"),
        [
            ({"BLUK": 0.1}, "QueueConfig.lanes.bluk: unknown key; did you mean bulk?"),
            ({"URGENT": 0.1}, "QueueConfig.lanes.urgent: unknown key; did you mean urgent_priority?"),
            ({"BULK": 2}, "QueueConfig.lanes.bulk: expected a number from 0 to 1; got 2"),
            ({"BULK": True}, "QueueConfig.lanes.bulk: expected a number from 0 to 1; got True"),
            (
                {"NORMAL": 0.97},
                "QueueConfig.lanes: expected least shares of at most 1 together; got NORMAL 0.97, BULK 0.05",
            ),
            (
                {"URGENT_PRIORITY": "NORMAL"},
                "QueueConfig.lanes.urgent_priority: expected HIGH, VERY_HIGH or CRITICAL; got 'NORMAL'",
            ),
            (
                {"BULK_PRIORITY": "CRITICAL"},
                "QueueConfig.lanes.bulk_priority: expected VERY_LOW or LOW; got 'CRITICAL'",
            ),
            (7, "QueueConfig.lanes: expected a mapping with NORMAL, BULK, URGENT_PRIORITY and BULK_PRIORITY; got 7"),
        ],
    )
    def test_mistakes_in_lanes_are_reported(self, lanes: Any, expected: str) -> None:
        assert error(lanes=lanes) == expected

    def test_a_mistake_in_settings_names_the_key(self, configure: Configure) -> None:
        message = configure.error({"REDIS": {"HOST": "h"}, "QUEUE": {"LANES": {"BLUK": 1, "NORMAL": "x"}}})
        assert 'settings.FAIRQUE["QUEUE"]["LANES"]["BLUK"]: unknown key; did you mean BULK?' in message
        assert 'settings.FAIRQUE["QUEUE"]["LANES"]["NORMAL"]: expected a number from 0 to 1; got \'x\'' in message


class TestSla:
    def test_every_priority_has_a_default_sla(self) -> None:
        assert set(DEFAULT_SLA) == set(Priority.__members__)

    def test_slas_may_be_given_in_part_and_in_any_case(self) -> None:
        config = QueueConfig(sla={"critical": 60, "Low": 5})
        assert config.sla == {**DEFAULT_SLA, "CRITICAL": 60.0, "LOW": 5.0}

    @pytest.mark.parametrize(
        ("sla", "expected"),
        [
            ({"CRITCAL": 5}, "QueueConfig.sla.CRITCAL: unknown priority 'CRITCAL'; did you mean CRITICAL?"),
            ({"HIGH": 0}, "QueueConfig.sla.HIGH: expected a number of seconds greater than 0; got 0"),
            ({"HIGH": "x"}, "QueueConfig.sla.HIGH: expected a number of seconds greater than 0; got 'x'"),
            (7, "QueueConfig.sla: expected a mapping of priority names to numbers of seconds; got 7"),
        ],
    )
    def test_mistakes_in_slas_are_reported(self, sla: Any, expected: str) -> None:
        assert error(sla=sla) == expected

    def test_changing_one_configuration_s_slas_keeps_the_defaults(self) -> None:
        QueueConfig().sla["HIGH"] = 1.0
        assert QueueConfig().sla == DEFAULT_SLA


def test_the_earlier_name_of_the_request_timeout_is_accepted() -> None:
    config = QueueConfig.model_validate({"pipeline_timeout": 2})
    assert config.request_timeout == config.pipeline_timeout == 2


class TestSweepInterval:
    """Its earlier name, and its largest value."""

    def test_the_earlier_name_of_the_sweep_interval_is_accepted(self) -> None:
        config = QueueConfig.model_validate({"queue_cleanup_interval": 2})
        assert config.sweep_interval == config.queue_cleanup_interval == 2

    def test_the_current_and_the_former_name_of_an_option_together_are_refused(self) -> None:
        text = error(sweep_interval=1, queue_cleanup_interval=2)
        assert (
            text
            == "QueueConfig.sweep_interval: expected once; got it by its earlier name as well (queue_cleanup_interval)"
        )

    @pytest.mark.parametrize("name", ["sweep_interval", "queue_cleanup_interval"])
    def test_a_sweep_interval_beyond_the_maximum_is_reduced_with_a_warning(
        self, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert QueueConfig.model_validate({name: 3600}).sweep_interval == MAX_SWEEP_INTERVAL_SECONDS
        assert "sweep_interval is reduced from 3600 to 5 seconds" in caplog.text

    def test_the_largest_sweep_interval_is_accepted_without_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        assert QueueConfig(sweep_interval=MAX_SWEEP_INTERVAL_SECONDS).sweep_interval == MAX_SWEEP_INTERVAL_SECONDS
        assert not caplog.text
