"""Handlers, leases, and queues that nobody serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import get_config
from django_fairque.worker.common.options import WorkerOptions

from .conftest import ids

if TYPE_CHECKING:
    from .conftest import Check

HERE = {"HOST": "localhost"}


def handle(payload: object) -> None:
    """A handler that can be imported."""


class TestHandlers:
    @pytest.mark.parametrize("path", ["nowhere.handle", f"{__name__}.nothing", "django_fairque.checks.TAG"])
    def test_a_payload_handler_that_can_not_be_used_is_an_error(self, check: Check, path: str) -> None:
        (message,) = check({"REDIS": HERE, "WORKER": {"HANDLER": path}})
        assert ids([message]) == ["E007"]
        assert path in message.msg

    def test_a_valid_payload_handler_passes_the_checks(self, check: Check) -> None:
        assert check({"REDIS": HERE, "WORKERS": {"w": {"HANDLER": f"{__name__}.handle"}}}) == []


class TestLeases:
    @pytest.mark.parametrize(
        ("lease", "timeout", "found"),
        [(15, 15, ["W003"]), (26, 15, ["W003"]), (27, 15, []), (15, 8, []), (30, 20, ["W003"])],
    )
    def test_a_lease_shorter_than_the_repetition_of_a_lost_reply_is_a_warning(
        self, check: Check, lease: float, timeout: float, found: list[str]
    ) -> None:
        worker = {"LEASE_SECONDS": lease}
        assert ids(check({"REDIS": {**HERE, "SOCKET_TIMEOUT": timeout}, "WORKER": worker})) == found
        assert ids(check({"REDIS": {**HERE, "SOCKET_TIMEOUT": timeout}, "WORKERS": {"a": {}, "b": worker}})) == found

    def test_the_default_lease_outlasts_a_lost_reply(self, check: Check) -> None:
        assert check({"REDIS": HERE}) == []
        options = WorkerOptions.from_config(get_config().worker)
        assert options.renewal_interval + get_config().redis.socket_timeout < options.fence_after


class TestQueues:
    @pytest.mark.parametrize(
        ("workers", "found"),
        [
            ({}, []),
            ({"a": {"QUEUES": ["default", "mail"]}}, []),
            ({"a": {}, "b": {"QUEUES": ["mail"]}}, []),
            ({"a": {}}, ["W008"]),
            ({"a": {"QUEUES": ["mail"]}}, []),  # the default queue needs no declaration
        ],
    )
    def test_a_queue_without_workers_is_reported(self, check: Check, workers: dict[str, Any], found: list[str]) -> None:
        assert ids(check({"REDIS": HERE, "QUEUES": {"mail": {}}, "WORKERS": workers})) == found
