"""Settings, file, environment and overrides: the order of precedence, and the keys in messages about mistakes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import FairQueueConfig, get_config
from django_fairque.conf.sources import SECTION_NAMES
from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django import Settings

    from tests.conf.conftest import Configure

ELSEWHERE = {"HOST": "nowhere"}


def with_file(tmp_path: Path, text: str) -> dict[str, Any]:
    file = tmp_path / "fairque.yaml"
    file.write_text(text)
    return {"REDIS": ELSEWHERE, "CONFIG_FILE": file}


class TestPrecedence:
    def test_a_later_source_takes_precedence_over_an_earlier_one(self, configure: Configure, tmp_path: Path) -> None:
        settings = {
            **with_file(tmp_path, "worker: {lease_seconds: 20, processes: 20, max_tasks: 20}"),
            "WORKER": {"LEASE_SECONDS": 10, "PROCESSES": 10, "MAX_TASKS": 10, "MAX_MEMORY_MB": 10},
        }
        configure(settings, FAIRQUE_WORKER__LEASE_SECONDS="30", FAIRQUE_WORKER__PROCESSES="30")
        worker = get_config(overrides={"worker": {"lease_seconds": 40}}).worker
        assert (worker.lease_seconds, worker.processes, worker.max_tasks, worker.max_memory_mb) == (40, 30, 20, 10)
        assert worker.concurrency == 8

    def test_from_settings_reads_all_sources_again(self, configure: Configure) -> None:
        configure({"REDIS": ELSEWHERE, "WORKER": {"PROCESSES": 2}}, FAIRQUE_WORKER__MAX_TASKS="3")
        config = FairQueueConfig.from_settings()
        assert (config.worker.processes, config.worker.max_tasks) == (2, 3)
        assert config == get_config()

    def test_keys_are_case_insensitive(self, configure: Configure) -> None:
        config = configure({"Redis": {"hOST": "h"}, "queue": {"sLA": {"High": 3}}, "Enqueue_On_Commit": False})
        assert (config.redis.host, config.queue.sla["HIGH"], config.enqueue_on_commit) == ("h", 3.0, False)

    def test_an_override_of_none_has_no_effect(self, configure: Configure) -> None:
        configure({"REDIS": ELSEWHERE, "WORKER": {"PROCESSES": 2}})
        assert get_config(overrides={"worker": {"processes": None}, "config_file": None}).worker.processes == 2

    def test_a_later_source_may_name_the_file(self, configure: Configure, tmp_path: Path) -> None:
        first, second, third = (tmp_path / name for name in ("1.yaml", "2.yaml", "3.yaml"))
        for number, file in enumerate((first, second, third), 1):
            file.write_text(f"worker: {{processes: {number}}}")
        assert configure({"REDIS": ELSEWHERE, "CONFIG_FILE": first}).worker.processes == 1
        assert (
            configure({"REDIS": ELSEWHERE, "CONFIG_FILE": first}, FAIRQUE_CONFIG_FILE=str(second)).worker.processes == 2
        )
        assert get_config(overrides={"config_file": third}).worker.processes == 3


class TestTheServer:
    def test_development_uses_an_embedded_server_by_default(self, configure: Configure, settings: Settings) -> None:
        settings.DEBUG = True
        nothings: list[Any] = [{}, None, {"REDIS": {}}, {"REDIS": None}, {"REDIS": {"URL": None}}, {"REDIS": {"DB": 3}}]
        for nothing in nothings:
            assert configure(nothing).redis.url == "embedded://"
        assert configure({"REDIS": {"DB": 3}}).redis.db == 3

    @pytest.mark.parametrize("nothing", [{}, None, {"REDIS": {"URL": None}}, {"REDIS": {"SOCKET_TIMEOUT": 20}}])
    def test_production_must_name_a_server(self, configure: Configure, settings: Settings, nothing: Any) -> None:
        settings.DEBUG = False
        message = configure.error(nothing)
        assert message.startswith(
            'settings.FAIRQUE["REDIS"]: no server is named; expected for example {"URL": "redis://'
        )
        assert "FAIRQUE_REDIS__URL" in message
        assert '{"URL": "embedded://"}' in message

    @pytest.mark.parametrize("debug", [True, False])
    def test_an_embedded_server_may_be_configured_in_any_mode(
        self, configure: Configure, settings: Settings, debug: bool
    ) -> None:
        settings.DEBUG = debug
        assert configure({"REDIS": {"URL": "embedded://"}}).redis.is_embedded
        assert configure({"REDIS": "embedded:///a/b"}).redis.url == "embedded:///a/b"

    def test_a_port_without_a_host_belongs_to_this_machine(self, configure: Configure) -> None:
        assert configure({"REDIS": {"PORT": 7}}).redis.endpoint == ("127.0.0.1", 7)

    @pytest.mark.parametrize("name", ["FAIRQUE_REDIS", "FAIRQUE_REDIS__URL"])
    def test_an_address_in_the_environment_replaces_the_whole_address(self, configure: Configure, name: str) -> None:
        settings = {"REDIS": {"HOST": "h", "PORT": 7, "PASSWORD": "p", "DB": 2}}
        redis = configure(settings, **{name: "redis://bob@i/3"}).redis
        assert (redis.endpoint, redis.username, redis.db) == (("i", 6379), "bob", 3)
        assert redis.password is None  # the password was for another server

    def test_a_part_of_an_address_in_the_environment_replaces_that_part(self, configure: Configure) -> None:
        redis = configure({"REDIS": {"HOST": "h", "PORT": 7, "PASSWORD": "p"}}, FAIRQUE_REDIS__HOST="i").redis
        assert redis.endpoint == ("i", 7)
        assert redis.password is not None

    def test_a_later_source_can_override_a_part_of_the_sentinels(self, configure: Configure) -> None:
        settings = {"REDIS": {"SENTINEL": {"SERVICE": "main", "NODES": ["a"]}, "DB": 3}}
        redis = configure(settings, FAIRQUE_REDIS__SENTINEL__SERVICE="other").redis
        assert (redis.address, redis.db) == ("other (of the sentinels a:26379)", 3)

    @pytest.mark.parametrize("url", ["embedded://", "redis://127.0.0.1", "unix:///s.sock"])
    def test_a_url_in_the_environment_removes_all_parts_of_the_earlier_address(
        self, configure: Configure, url: str
    ) -> None:
        production = {"URL": "rediss://bob:p@h/3", "SSL_CA_CERTS": "/ca", "CLUSTER": False, "SOCKET_TIMEOUT": 20}
        redis = configure({"REDIS": production}, FAIRQUE_REDIS=url).redis
        assert (redis.url, redis.username, redis.password, redis.db, redis.ssl) == (url, None, None, 0, False)
        assert redis.socket_timeout == 20

    def test_sentinels_replace_a_url(self, configure: Configure) -> None:
        environment = {"FAIRQUE_REDIS__SENTINEL__SERVICE": "main", "FAIRQUE_REDIS__SENTINEL__NODES": "a,b:7"}
        redis = configure({"REDIS": {"URL": "redis://h"}}, **environment).redis
        assert redis.url is None
        assert redis.hosts == ["a", "b"]

    def test_a_url_replaces_sentinels(self, configure: Configure) -> None:
        settings = {"REDIS": {"SENTINEL": {"SERVICE": "main", "NODES": ["a"]}}}
        redis = configure(settings, FAIRQUE_REDIS__URL="redis://h").redis
        assert (redis.sentinel, redis.endpoint) == (None, ("h", 6379))

    def test_a_part_of_an_address_in_a_later_source_wins_over_the_url(self, configure: Configure) -> None:
        settings = {"REDIS": {"URL": "redis://bob:x@h/3?socket_timeout=20"}}
        redis = configure(settings, FAIRQUE_REDIS__PASSWORD="y", FAIRQUE_REDIS__DB="5").redis
        assert redis.password is not None
        assert (redis.password.get_secret_value(), redis.db, redis.socket_timeout) == ("y", 5, 20)


class TestEnvironment:
    def test_environment_variables_can_set_options_of_every_level(self, configure: Configure) -> None:
        config = configure(
            {"REDIS": ELSEWHERE},
            FAIRQUE_ENQUEUE_ON_COMMIT="off",
            FAIRQUE_OUTBOX="on",
            FAIRQUE_REDIS__CLUSTER="true",
            FAIRQUE_WORKER__USERS="a,b",
            FAIRQUE_QUEUE__SLA__CRITICAL="7",
            FAIRQUE_QUEUES__MAIL__DEFAULT_MAX_RETRIES="9",
            FAIRQUE_QUEUES__MAIL__SLA__HIGH="8",
        )
        assert (config.enqueue_on_commit, config.outbox, config.redis.cluster) == (False, True, True)
        assert config.worker.users == ["a", "b"]
        mail = config.queue_config("mail")
        assert (mail.default_max_retries, mail.sla["CRITICAL"], mail.sla["HIGH"]) == (9, 7.0, 8.0)

    def test_other_environment_variables_are_ignored(self, configure: Configure) -> None:
        others = {"FAIRQUE_SERVER_BIN": "/bin/x", "FAIRQUE_REDIS_PORT": "tcp://10.0.0.1:6379", "FAIRQUEUE__X__Y": "1"}
        assert configure({"REDIS": ELSEWHERE}, **others).redis.host == "nowhere"


SWITCHED: dict[str, tuple[str, object]] = {
    "enqueue_on_commit": ("false", False),
    "outbox": ("true", True),
    "capture_in_tests": ("false", False),
    "plan_of": ("shop.plans.plan_of", "shop.plans.plan_of"),
    "request_user": ("shop.users.of", "shop.users.of"),
    "middleware": (
        "shop.middleware.Language,shop.middleware.Timing",
        ["shop.middleware.Language", "shop.middleware.Timing"],
    ),
    "tracing": ("true", True),
    "signing": ("verify-only", "verify-only"),
    "redact": ("secret,pin", ["secret", "pin"]),
    "users_label": ("Customers", "Customers"),
    "code_version": ("v1.2", "v1.2"),
}
"""By name, another value than the default, as text and as it is."""


class TestTopLevel:
    """Settings outside of any section stand at the top of every source."""

    def test_every_top_level_option_has_a_tested_value(self) -> None:
        assert {*SWITCHED, *SECTION_NAMES} == {*FairQueueConfig.model_fields}

    @pytest.mark.parametrize("name", SWITCHED)
    def test_a_top_level_option_can_be_set_in_every_source(
        self, configure: Configure, tmp_path: Path, name: str
    ) -> None:
        text, value = SWITCHED[name]
        assert getattr(configure({"REDIS": ELSEWHERE}), name) != value
        assert getattr(configure({"REDIS": ELSEWHERE, name.upper(): value}), name) == value
        assert getattr(configure(with_file(tmp_path, f"{name}: {json.dumps(value)}")), name) == value
        assert getattr(configure({"REDIS": ELSEWHERE}, **{f"FAIRQUE_{name.upper()}": text}), name) == value

    @pytest.mark.parametrize(
        "name", SWITCHED.keys() - {"redact", "request_user", "middleware", "users_label", "code_version"}
    )
    def test_an_invalid_top_level_option_in_the_environment_is_refused(self, configure: Configure, name: str) -> None:
        message = configure.error({"REDIS": ELSEWHERE}, **{f"FAIRQUE_{name.upper()}": "nonsense"})
        assert message.startswith(f"environment variable FAIRQUE_{name.upper()}: expected ")


class TestQueues:
    def test_the_default_queue_is_always_declared(self, configure: Configure) -> None:
        assert list(configure({"REDIS": ELSEWHERE}).queues) == ["default"]
        assert set(configure({"REDIS": ELSEWHERE, "QUEUES": {"mail": {}}}).queues) == {"default", "mail"}

    def test_a_queue_has_the_options_of_all_queues_and_its_own(self, configure: Configure) -> None:
        config = configure({
            "REDIS": ELSEWHERE,
            "QUEUE": {"RESULT_TTL": 90, "MAX_DELIVERIES": 7, "SLA": {"LOW": 5}},
            "QUEUES": {"mail": {"MAX_DELIVERIES": 2, "SLA": {"HIGH": 6}}, "sms": None},
        })  # fmt: skip
        mail, sms = config.queue_config("mail"), config.queue_config("sms")
        assert (mail.result_ttl, mail.max_deliveries, mail.sla["LOW"], mail.sla["HIGH"]) == (90, 2, 5, 6)
        assert sms == config.queue == config.queue_config("default")

    @pytest.mark.parametrize(("name", "hint"), [("mial", "; did you mean 'mail'?"), ("zzz", ""), ("", ""), (None, "")])
    def test_the_options_of_an_undeclared_queue_are_refused(self, configure: Configure, name: Any, hint: str) -> None:
        config = configure({"REDIS": ELSEWHERE, "QUEUES": {"mail": {}}})
        with pytest.raises(ConfigurationError) as caught:
            config.queue_config(name)
        assert "is not declared in QUEUES: expected one of 'default', 'mail'" in str(caught.value)
        assert str(caught.value).endswith(hint or "'mail'")


WORKERS = """
worker: {lease_seconds: 9, processes: 4}
workers:
  - {id: mail, queues: [default], processes: 5, users: [a], steal: "*"}
  - {id: bulk, lease_seconds: 90}
"""


class TestWorkers:
    @pytest.mark.parametrize(
        "form", [WORKERS, WORKERS.replace("- {id: mail, ", "mail: {").replace("- {id: bulk, ", "bulk: {")]
    )
    def test_a_worker_is_chosen_by_its_id(self, configure: Configure, tmp_path: Path, form: str) -> None:
        configure(with_file(tmp_path, form))
        worker = get_config(overrides={"worker": {"id": "mail"}}).worker
        assert (worker.id, worker.processes, worker.lease_seconds) == ("mail", 5, 9)
        assert (worker.users, worker.steal) == (["a"], ["*"])

    def test_a_worker_without_an_id_has_the_options_common_to_all_workers(
        self, configure: Configure, tmp_path: Path
    ) -> None:
        config = configure(with_file(tmp_path, WORKERS))
        assert (config.worker.id, config.worker.processes) == (None, 4)
        assert config.workers["bulk"].lease_seconds == 90
        assert set(config.workers) == {"mail", "bulk"}

    def test_the_only_declared_worker_needs_no_choice(self, configure: Configure) -> None:
        config = configure({"REDIS": ELSEWHERE, "WORKERS": [{"ID": "only", "PROCESSES": 3}]})
        assert (config.worker.id, config.worker.processes) == ("only", 3)

    def test_options_of_the_process_win_over_those_of_the_chosen_worker(
        self, configure: Configure, tmp_path: Path
    ) -> None:
        configure(with_file(tmp_path, WORKERS), FAIRQUE_WORKER__ID="mail", FAIRQUE_WORKER__PROCESSES="7")
        assert get_config().worker.processes == 7
        assert get_config(overrides={"worker": {"processes": 8}}).worker.processes == 8

    def test_an_unknown_worker_id_is_refused(self, configure: Configure, tmp_path: Path) -> None:
        configure(with_file(tmp_path, WORKERS))
        with pytest.raises(
            ConfigurationError, match=r"(?m)^override worker.id: unknown worker 'mial'; did you mean mail\?$"
        ):
            get_config(overrides={"worker": {"id": "mial"}})

    def test_a_mistake_in_the_chosen_worker_is_reported_once(self, configure: Configure) -> None:
        message = configure.error({"REDIS": ELSEWHERE, "WORKERS": {"w": {"PROCESSES": 0}}})
        assert message == (
            'settings.FAIRQUE["WORKERS"]["w"]["PROCESSES"]: expected a whole number from 1 to 256; got 0'
        )

    @pytest.mark.parametrize("workers", [[{"PROCESSES": 2}], [3], [{"ID": "a"}, {"id": "a"}]])
    def test_each_worker_of_a_list_needs_a_unique_id(self, configure: Configure, workers: Any) -> None:
        message = configure.error({"REDIS": ELSEWHERE, "WORKERS": workers})
        assert 'settings.FAIRQUE["WORKERS"]: expected a list of mappings, each with a unique id; got ' in message


class TestMistakes:
    """Each is named as it was written, with where, what was expected and what came."""

    @pytest.mark.parametrize(
        ("section", "expected"),
        [
            ({"QUEUE": {"PREFX": 1}}, 'settings.FAIRQUE["QUEUE"]["PREFX"]: unknown key; did you mean PREFIX?'),
            ({"WORKR": {}}, 'settings.FAIRQUE["WORKR"]: unknown key; did you mean WORKER?'),
            ({"WORKER": 5}, 'settings.FAIRQUE["WORKER"]: expected a mapping; got 5'),
            ({"QUEUES": ["a"]}, 'settings.FAIRQUE["QUEUES"]: expected a mapping; got a list of 1'),
            ({"QUEUES": {"a": 5}}, 'settings.FAIRQUE["QUEUES"]["a"]: expected a mapping; got 5'),
            (
                {"QUEUE": {"SLA": {"HIG": 3}}},
                'settings.FAIRQUE["QUEUE"]["SLA"]["HIG"]: unknown priority \'HIG\'; did you mean HIGH?',
            ),
            (
                {"QUEUES": {"Mail": {}}},
                'settings.FAIRQUE["QUEUES"]["Mail"]: expected a queue\'s name: 1 to 64 lower-case',
            ),
            (
                {"QUEUES": {3: {"RESULT": 1}}},
                'settings.FAIRQUE["QUEUES"]["3"]["RESULT"]: unknown key; did you mean RESULT_TTL?',
            ),
            (
                {"ENQUEUE_ON_COMMIT": "maybe"},
                "settings.FAIRQUE[\"ENQUEUE_ON_COMMIT\"]: expected true or false; got 'maybe'",
            ),
            ({"WORKER": {"QUEUES": ["mial"]}, "QUEUES": {"mail": {}}}, "unknown queue 'mial'; did you mean mail?"),
            (
                {"WORKER": {"USERS": ["a", ""]}},
                'settings.FAIRQUE["WORKER"]["USERS"], 1: expected a user id',
            ),
            (
                {"WORKER": {"USERS": ["a"], "STEAL": ["a"]}},
                'FAIRQUE["WORKER"]["STEAL"]: expected users that are not in users; got \'a\'',
            ),
            (
                {"WORKER": {"POLL_INTERVAL": 14}},
                'FAIRQUE["WORKER"]["POLL_INTERVAL"]: expected at most 13, which is redis.socket_timeout',
            ),
            (
                {"QUEUE": {}, "Queue": {"PREFIX": "a"}, "queue": {"prefix": "b"}},
                "expected once; got it a second time, as Queue",
            ),
        ],
    )
    def test_mistakes_in_settings_are_reported(self, configure: Configure, section: Any, expected: str) -> None:
        assert expected in configure.error({"REDIS": ELSEWHERE, **section})

    def test_a_socket_timeout_that_is_too_short_for_the_worker_is_refused(self, configure: Configure) -> None:
        assert configure.error({"REDIS": {"HOST": "h", "SOCKET_TIMEOUT": 6.5}}) == (
            'settings.FAIRQUE["REDIS"]["SOCKET_TIMEOUT"]: expected at least 7, which is the worker\'s '
            "poll_interval plus 2; got 6.5"
        )

    @pytest.mark.parametrize("nonsense", ["redis://h", 5, ["a"]])
    def test_settings_that_are_no_mapping_are_refused(self, configure: Configure, nonsense: Any) -> None:
        message = configure.error(nonsense)
        assert message.startswith("settings.FAIRQUE: expected a mapping; got ")
        assert "\n" not in message

    def test_mistakes_in_the_environment_name_the_variable(self, configure: Configure) -> None:
        assert configure.error({"REDIS": ELSEWHERE}, FAIRQUE_WORKER__LEASE_SECONDS="soon") == (
            "environment variable FAIRQUE_WORKER__LEASE_SECONDS: expected a number of seconds greater than 0 and at "
            "most 315360000 (ten years); got 'soon'"
        )

    @pytest.mark.parametrize(
        ("name", "suggestion"),
        [
            ("FAIRQUE_QUEUE__PREFX", "PREFIX"),
            ("FAIRQUE_WORKR__ID", "WORKER"),
            ("FAIRQUE_REDIS__SENTINEL__SERVCE", "SERVICE"),
        ],
    )
    def test_an_unknown_environment_variable_is_reported(
        self, configure: Configure, name: str, suggestion: str
    ) -> None:
        message = configure.error({"REDIS": ELSEWHERE}, **{name: "x"})
        assert f"environment variable {name}: unknown key; did you mean {suggestion}?" in message

    def test_all_mistakes_in_a_file_are_reported_at_once(self, configure: Configure, tmp_path: Path) -> None:
        settings = with_file(tmp_path, "queues:\n  mail:\n    sharts: 3\nworker:\n  processes: many\n")
        file = settings["CONFIG_FILE"]
        assert configure.error(settings).splitlines() == [
            "2 mistakes in the configuration",
            f"- worker.processes in {file}: expected a whole number from 1 to 256; got 'many'",
            f"- queues.mail.sharts in {file}: unknown key; did you mean shards?",
        ]

    def test_a_mistake_in_the_overrides_names_the_override(self) -> None:
        with pytest.raises(ConfigurationError, match=r"(?m)^override worker\.processes: expected a whole number"):
            get_config(overrides={"worker": {"processes": 0}})

    def test_mistakes_of_all_sources_are_in_one_message(self, configure: Configure, tmp_path: Path) -> None:
        settings = {**with_file(tmp_path, "queue: {shards: 999}"), "WORKER": {"HANDLR": 1}}
        message = configure.error(settings, FAIRQUE_REDIS__PORT="x")
        assert message.startswith("3 mistakes in the configuration\n- ")
        assert "environment variable FAIRQUE_REDIS__PORT" in message
        assert 'settings.FAIRQUE["WORKER"]["HANDLR"]: unknown key; did you mean HANDLER?' in message
        assert "queue.shards in " in message

    def test_no_password_is_shown(self, configure: Configure) -> None:
        settings = {"REDIS": {"URL": "redis://bob:hunter2@h/x", "PASSWORD": ["hunter2"], "PASWORD": "hunter2"}}
        assert "hunter" not in configure.error(settings)
        assert "hunter" not in configure.error({"REDIS": ["hunter2"]})
        assert "hunter" not in configure.error({"REDIS": {"HOST": "h", "SENTINEL": "hunter2"}})
        assert "hunter" not in configure.error({"REDIS": ELSEWHERE}, FAIRQUE_REDIS__URL="redis://:hunter2@h:port")
