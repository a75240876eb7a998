"""No acknowledged write is lost when the server is killed under those who write."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_fairque.embedded import connection_pool_kwargs
from tests.embedded.helpers import ROOT, only_server_of, starts_in_log, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.embedded.conftest import MakeEmbedded

WRITERS = 3
KILLS = 12
BUSY_DISK = "fsync is taking too long"

# The program writes until its standard input ends. Then it prints four counts: acknowledged writes, missing ones of
# these, kills with missing writes, and missing writes that were not among the last before a kill.
_WRITER = """
import json, select, sys, redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from django_fairque.embedded import connection_pool_kwargs

directory, name, appendfsync = sys.argv[1:]
kwargs = connection_pool_kwargs(directory, appendfsync=appendfsync)  # a restart uses the same policy
pool = redis.ConnectionPool(retry=Retry(NoBackoff(), 0), protocol=2, **kwargs)
# A pool replaces a connection that was closed between two writes without an error, so that this kill would not be counted.
client = redis.Redis(connection_pool=pool, single_connection_client=True)
acknowledged, cut, number = [], set(), 0
while not select.select([sys.stdin], [], [], 0)[0]:
    number += 1
    try:
        client.rpush(name, number)
    except redis.ConnectionError:
        cut.add(number)
        continue  # nobody said yes: it may be there or not
    acknowledged.append(number)
kept = set(map(int, client.lrange(name, 0, -1)))
missing, kills, holes, at_end = sorted(set(acknowledged) - kept), 0, 0, False
for key in reversed(missing):
    at_end = key + 1 in cut or (at_end and key + 1 in missing)
    kills += key + 1 in cut
    holes += not at_end
print(json.dumps([len(acknowledged), len(missing), kills, holes]))
"""


def start_writer(directory: Path, name: str, appendfsync: str = "everysec") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, str(directory), name, appendfsync]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def ending(processes: list[subprocess.Popen[str]]) -> Iterator[None]:
    """Whatever happens, nobody is left who would start the server again."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.thorough
@pytest.mark.parametrize("appendfsync", ["everysec", "always"])
def test_a_server_killed_repeatedly_under_load_loses_no_synced_write(
    make_embedded: MakeEmbedded, appendfsync: str
) -> None:
    embedded = make_embedded(appendfsync=appendfsync)
    embedded.ensure()
    names = [f"writer-{number}" for number in range(WRITERS)]
    writers = [start_writer(embedded.directory, name, appendfsync) for name in names]
    kwargs = connection_pool_kwargs(embedded.directory, appendfsync=appendfsync)
    kwargs |= {"retry": Retry(NoBackoff(), 5), "retry_on_error": [redis.ConnectionError]}
    watcher = redis.Redis.from_pool(redis.ConnectionPool(protocol=2, **kwargs))

    def written() -> list[int]:
        assert [writer.poll() for writer in writers] == [None] * WRITERS
        return [int(watcher.llen(name)) for name in names]

    def persistence() -> dict[str, Any]:
        return watcher.info("persistence")

    def wait_until_all_go_on() -> None:
        goals = [count + 20 for count in written()]
        wait_until(lambda: all(map(operator.gt, written(), goals)))

    with watcher, ending(writers):
        for _ in range(KILLS):
            wait_until_all_go_on()
            # The server may reply before it writes while a sync runs, so a kill then says nothing about the rest.
            wait_until(lambda: not persistence()["aof_pending_bio_fsync"])
            os.kill(only_server_of(embedded.directory), signal.SIGKILL)
        wait_until_all_go_on()
        reports = [json.loads(writer.communicate(timeout=60)[0]) for writer in writers]
    if appendfsync == "everysec" and BUSY_DISK in (embedded.directory / "server.log").read_text():
        pytest.skip(
            "a sync took more than a second: then the server may say yes before it writes (docs/contributing/servers.md)"
        )
    for acknowledged, lost, kills, holes in reports:
        assert acknowledged > KILLS * 20
        # Synced every second, the server may say yes before it writes for as long as a sync takes, which is a fraction of
        # a millisecond in a second on an idle disk. Only the last acknowledged writes are lost then.
        assert holes == 0
        assert kills <= (1 if appendfsync == "everysec" else 0)
        assert bool(lost) == bool(kills)
    only_server_of(embedded.directory)
    assert starts_in_log(embedded.directory) > KILLS
