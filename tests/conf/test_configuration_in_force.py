"""The configuration in force: kept while nothing changes, read anew when a setting does."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from django.test import override_settings

from django_fairque import conf
from django_fairque.conf import get_config, reset_config, set_overrides

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.conf.conftest import Configure


def test_the_configuration_is_read_once_until_a_reset(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    first = configure({"REDIS": {"HOST": "h"}})
    monkeypatch.setenv("FAIRQUE_WORKER__PROCESSES", "2")
    assert get_config() is first
    reset_config()
    assert get_config().worker.processes == 2


def test_overridden_settings_count_while_they_last() -> None:
    before = get_config()
    with override_settings(FAIRQUE={"REDIS": {"HOST": "other"}}):
        assert get_config().redis.host == "other"
    assert get_config() == before


@pytest.mark.parametrize(
    ("name", "value"), [("CACHES", {"default": {"BACKEND": "x"}}), ("DEBUG", True), ("BASE_DIR", "/x")]
)
def test_a_change_of_other_settings_in_use_renews_the_configuration(settings: Settings, name: str, value: Any) -> None:
    before = get_config()
    setattr(settings, name, value)
    assert get_config() is not before


def test_a_change_of_an_unrelated_setting_keeps_the_configuration(settings: Settings) -> None:
    before = get_config()
    settings.USE_TZ = not settings.USE_TZ
    assert get_config() is before


def test_overrides_for_one_call_leave_no_trace() -> None:
    assert get_config(overrides={"worker": {"processes": 3}}).worker.processes == 3
    assert get_config().worker.processes == 1


def test_overrides_for_the_process_stay_in_force(configure: Configure) -> None:
    set_overrides({"worker": {"processes": 3}, "REDIS": "redis://other/4"})
    config = configure({"REDIS": {"HOST": "h"}, "WORKER": {"PROCESSES": 2, "MAX_TASKS": 5}})
    assert (config.worker.processes, config.worker.max_tasks) == (3, 5)
    assert (config.redis.endpoint, config.redis.db) == (("other", 6379), 4)
    once = get_config(overrides={"worker": {"processes": 4}, "redis": {"db": 5}})
    assert (once.worker.processes, once.redis.endpoint, once.redis.db) == (4, ("other", 6379), 5)


def test_every_name_of_the_conf_module_is_exported() -> None:
    assert dir(conf) == conf.__all__  # type: ignore[attr-defined]
    assert all(getattr(conf, name) for name in dir(conf))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        conf.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_conf_module_imports_nothing_of_weight() -> None:
    program = (
        "import sys, django_fairque.conf as conf; loaded = set(sys.modules)\n"
        "assert not loaded & {'django', 'redis', 'pydantic', 'yaml'}, loaded\n"
        "conf.FairQueueConfig(); loaded = set(sys.modules)\n"
        "assert not loaded & {'django', 'redis', 'yaml'}, sorted(loaded & {'django', 'redis', 'yaml'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
