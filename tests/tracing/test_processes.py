"""Traces through real worker processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import FairQueue, Task
from django_fairque.engine.model.options import QueueConfig
from tests.worker.conftest import WorkerProcess

from .test_format import PARENT, SPAN_ID, TRACE_ID

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis

    from tests.servers import Server


@pytest.mark.thorough
def test_the_spans_of_a_worker_are_sent_before_it_ends(server: Server, redis: Redis, tmp_path: Path) -> None:
    queue = FairQueue(redis, "default", QueueConfig())
    queue.push(Task.create("ann", 3, {"args": [2], "kwargs": {}}, name="spawns", traceparent=PARENT))
    (tmp_path / "spans").mkdir()
    worker = WorkerProcess(
        server,
        tmp_path,
        "--burst",
        DJANGO_SETTINGS_MODULE="tests.tracing.project.settings",
        TEST_SPANS=str(tmp_path / "spans"),
    )
    try:
        assert worker.wait() == 0, worker.log
    finally:
        worker.close()
    assert queue.get_stats().states["finished"] == 3
    spans: list[dict[str, Any]] = [
        json.loads(line) for file in (tmp_path / "spans").iterdir() for line in file.read_text().splitlines()
    ]
    names = sorted(span["name"] for span in spans)
    assert names == ["enqueue default"] * 2 + ["run default"] * 3, worker.log
    assert {span["context"]["trace_id"] for span in spans} == {f"0x{TRACE_ID}"}
    by_id = {span["context"]["span_id"]: span for span in spans}
    roots = [span for span in spans if span["parent_id"] not in by_id]
    assert [(root["name"], root["parent_id"]) for root in roots] == [("run default", f"0x{SPAN_ID}")]
    assert queue.check_invariants() == []
