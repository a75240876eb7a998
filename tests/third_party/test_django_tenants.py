"""Tasks run in the schema of their tenant, with django-tenants on PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.tools.postgres import binaries

if TYPE_CHECKING:
    from redis import Redis

    from tests.servers import Server

pytest.importorskip("django_tenants")
pytestmark = pytest.mark.skipif(binaries() is None, reason="there is no PostgreSQL here")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def found(server: Server, redis: Redis) -> dict[str, Any]:
    program = [sys.executable, "-m", "tests.tools.postgres", sys.executable, "-m", "tests.third_party.tenants.scenario"]
    done = subprocess.run(
        program,
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


def test_tasks_run_in_the_database_schema_of_the_tenant_that_enqueued_them(found: dict[str, Any]) -> None:
    for tenant in ("acme", "globex"):
        own = [tenant, f"order of {tenant}"]
        assert found[f"{tenant} in a transaction"] == own
        assert found[f"{tenant} coroutine"] == [*own, f"order of {tenant}"]
        assert found[f"{tenant} nested"] == own
    assert found["acme batch"] == ["acme", "order of acme"]
    assert found["public"] == found["public coroutine"] == ["public"]
    assert found["from a coroutine"] == ["acme", "order of acme"]
    assert found["invoices"] == [["acme", "acme"], ["globex", "globex"]]
    assert all("a batch of several tenants: ['acme', 'globex']" in error for error in found["mixed"])
