"""The options of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import FairQueueConfig, WorkerConfig
from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


def error(**options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        WorkerConfig(**options)
    return str(caught.value)


def test_the_options_of_a_worker_have_defaults() -> None:
    assert WorkerConfig().model_dump() == {
        "id": None,
        "users": ["*"],
        "steal": [],
        "queues": ["default"],
        "poll_interval": 5,
        "task_timeout": 300,
        "hard_timeout_grace": 5,
        "concurrency": 8,
        "reserve": {},
        "shutdown_timeout": 30,
        "lease_seconds": 30,
        "processes": 1,
        "start_method": "auto",
        "handler": None,
        "alert_email": [],
        "max_tasks": 0,
        "max_memory_mb": 0,
        "close_database_connections": False,
    }


@pytest.mark.parametrize(
    ("written", "users"),
    [
        ("*", ["*"]),
        ("a", ["a"]),
        ("a, b", ["a", "b"]),
        ("", []),
        ('["a,b", "c"]', ["a,b", "c"]),
        (("a", "b"), ["a", "b"]),
        (["{x}", "a:b", "a\nb", "\0", "😀" * 64], ["{x}", "a:b", "a\nb", "\0", "😀" * 64]),
    ],
)
def test_users_may_be_written_as_text(written: Any, users: list[str]) -> None:
    assert WorkerConfig(users=written).users == users


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"users": [""]},
            "users.0: expected a user id: a non-empty text of at most 256 bytes; got ''",
        ),
        ({"users": ["é" * 129]}, "users.0: expected a user id"),
        ({"users": [3]}, "users.0: expected a user id: a non-empty text of at most 256 bytes; got 3"),
        ({"users": '["a"'}, 'users: expected a list of user ids, or "*" for everyone; got \'["a"\''),
        ({"users": 3}, "expected a list of user ids"),
        ({"queues": []}, "queues: expected a list of at least one queue's name"),
        ({"queues": ["Mail"]}, "queues.0: expected a queue's name: 1 to 64 lower-case letters, digits"),
        ({"id": "a b"}, "id: expected a name without spaces and commas; got 'a b'"),
        ({"handler": "handle"}, 'handler: expected the dotted path of a callable, such as "shop.tasks.handle"'),
        ({"processes": 0}, "processes: expected a whole number from 1 to 256; got 0"),
        ({"start_method": "fork"}, 'start_method: expected "auto", "spawn" or "forkserver"; got \'fork\''),
        ({"concurrency": 0}, "expected a whole number from 1 to 1000; got 0"),
        ({"reserve": {"urgnet": 1}}, "unknown lane 'urgnet'; did you mean urgent?"),
        ({"reserve": {"bulk": 1}}, "expected urgent or normal: no lane is lower than bulk"),
        ({"reserve": {"urgent": -1}}, "expected a whole number of slots, at least 0; got -1"),
        ({"reserve": {"urgent": 1.5}}, "expected a whole number of slots, at least 0; got 1.5"),
        ({"reserve": "urgent=x"}, "expected a whole number of slots, at least 0; got 'x'"),
        ({"reserve": "urgent"}, "expected a whole number of slots, at least 0; got ''"),
        ({"reserve": 3}, "expected a mapping of urgent and normal to numbers of slots; got 3"),
        (
            {"reserve": {"urgent": 6, "normal": 2}},
            "expected fewer slots than concurrency (8), so that each lane can use one; got 8",
        ),
        ({"max_tasks": -1}, "expected a whole number of tasks, at least 0 (0: no limit); got -1"),
        ({"max_memory_mb": -1}, "expected a whole number of megabytes, at least 0 (0: no limit); got -1"),
        ({"poll_interval": 0}, "expected a number of seconds greater than 0"),
        ({"poll_intervall": 1}, "poll_intervall: unknown key; did you mean poll_interval?"),
    ],
)
def test_mistakes_in_the_options_of_a_worker_are_reported(options: dict[str, Any], expected: str) -> None:
    assert expected in error(**options)


class TestServedUsers:
    def test_a_user_in_both_users_and_steal_is_refused(self) -> None:
        message = error(users=["a", "b", "c"], steal=["d", "c", "b"])
        assert message == ("WorkerConfig.steal: expected users that are not in users; got 'c', 'b', who are in both")

    def test_an_error_about_many_users_in_both_lists_names_a_few(self) -> None:
        users = [f"u{number}" for number in range(30)]
        assert "got 'u0', 'u1', 'u2', 'u3', 'u4' and 25 more, who are in both" in error(users=users, steal=users)

    @pytest.mark.parametrize("steal", [["*"], ["a"]])
    def test_steal_is_refused_together_with_all_users(self, steal: list[str]) -> None:
        message = error(users=["*"], steal=steal)
        assert message.startswith('WorkerConfig.steal: expected nothing here, because users is "*"')

    def test_all_other_users_may_be_stolen_from_next_to_listed_users(self) -> None:
        assert WorkerConfig(users=["a"], steal=["*"]).steal == ["*"]

    @pytest.mark.parametrize("name", ["users", "steal"])
    def test_a_worker_accepts_at_most_3000_user_ids(self, name: str) -> None:
        users = [f"u{number}" for number in range(3001)]
        options: dict[str, Any] = {"users": ["z"], name: users}
        message = error(**options)
        assert message == f'WorkerConfig.{name}: expected at most 3,000 user ids, or "*" for everyone; got 3,001'
        assert getattr(WorkerConfig(**{**options, name: [*users[1:], users[1]]}), name)

    @pytest.mark.parametrize("name", ["users", "steal"])
    def test_a_star_for_all_users_is_refused_together_with_user_ids(self, name: str) -> None:
        options = {"users": ["z"], name: ["*", "a"]}
        assert f'WorkerConfig.{name}: expected "*" alone or user ids; got "*" and 1 more' in error(**options)


EARLIER = {
    "assigned_users": ("users", ["a"]),
    "steal_targets": ("steal", ["b"]),
    "poll_interval_seconds": ("poll_interval", 1.5),
    "task_timeout_seconds": ("task_timeout", 60.0),
    "max_concurrent_tasks": ("concurrency", 10),
    "graceful_shutdown_timeout": ("shutdown_timeout", 12.0),
}


@pytest.mark.parametrize(("earlier", "current", "value"), [(name, *rest) for name, rest in EARLIER.items()])
def test_the_names_of_the_first_design_are_accepted(earlier: str, current: str, value: Any) -> None:
    options = {"users": ["z"], earlier: value} if earlier != "assigned_users" else {earlier: value}
    config = WorkerConfig(**options)
    assert getattr(config, current) == getattr(config, earlier) == value


def test_an_option_under_both_of_its_names_is_refused() -> None:
    assert error(max_concurrent_tasks=3, concurrency=4) == (
        "WorkerConfig.concurrency: expected once; got it by its earlier name as well (max_concurrent_tasks)"
    )


def test_a_worker_in_a_file_may_have_the_earlier_names(tmp_path: Path) -> None:
    file = tmp_path / "fairque.yaml"
    file.write_text("worker: {poll_interval_seconds: 2}\nworkers: {w: {assigned_users: [a], poll_interval: 3}}")
    worker = FairQueueConfig.from_yaml(file).workers["w"]
    assert (worker.users, worker.poll_interval) == (["a"], 3)
