"""A task runs with a database role that can only read, on PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.blocks import DOCS
from tests.tools.postgres import binaries

if TYPE_CHECKING:
    from redis import Redis

    from tests.servers import Server


@pytest.mark.skipif(binaries() is None, reason="there is no PostgreSQL here")
@pytest.mark.slow  # a server of PostgreSQL is made for it
def test_a_task_with_a_read_only_database_role_can_not_write(server: Server, redis: Redis) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.postgres", sys.executable, "-m", "tests.third_party.database_role"],
        cwd=DOCS.parent,
        env={**os.environ, "TEST_SERVER": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["counted"] == [1, 1]
    assert "permission denied for table auth_group" in found["refused"]
    assert (found["written"], found["groups"]) == ("finished", ["first", "third"])
