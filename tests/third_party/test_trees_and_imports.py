"""Tests of model events with django-mptt and django-import-export."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from redis import Redis

    from tests.servers import Server

pytest.importorskip("mptt")
pytest.importorskip("import_export")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def found(server: Server, redis: Redis) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.third_party.pages.scenario"],
        cwd=ROOT,
        env={**os.environ, "TEST_SERVER": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_events_of_tree_models_and_imports_fire_as_documented(found: dict[str, Any]) -> None:
    """A node that moves is one update, in which its parent has changed; nothing is seen of its level and of other nodes."""
    for model in ("Page", "WatchedPage"):
        assert found[f"{model}: move_to"] == [["moved", "child", "one"], ["update", "child"]]
        assert found[f"{model}: parent and save"] == [["moved", "child", "two"], ["update", "child"]]
        assert found[f"{model}: move_to the root"] == [["moved", "child", None], ["update", "child"]]
    assert found["Page: update"] == found["Page: rebuild"] == []
    assert found["WatchedPage: update"] == [["update", "leaf"]]
    rebuilt = [task for task in found["WatchedPage: rebuild"] if task[0] == "update"]
    assert rebuilt == [["update", title] for title in ("child", "leaf", "one", "two")]

    for model in ("Product", "WatchedProduct"):
        for way in ("row by row", "use_bulk"):
            is_seen = way == "row by row" or model == "WatchedProduct"
            new, again = ([["create", "milk", 1], ["create", "tea", 3]], [["update", "milk", 1], ["update", "tea", 4]])
            assert found[f"{model}: {way}, new"] == (new if is_seen else [])
            assert found[f"{model}: {way}, again"] == (again if is_seen else [])
            assert found[f"{model}: {way}, dry run"] == []

    (warning,) = found["warned"]
    assert warning.endswith(": pages.Page (objects); pages.Product (objects)")
