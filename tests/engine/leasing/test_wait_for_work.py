"""A wait for work with the request for it already there: one round trip less, and nothing lost for that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py
from redis import Redis

from django_fairque.engine.leasing.lease_ops import Fetch, PrefetchingWait
from django_fairque.engine.model.errors import NotPermittedError
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task
from tests.servers import Server
from tests.topologies import wait_for

FETCH = Fetch(2, "w")


@pytest.fixture
def known(queue: FairQueue) -> FairQueue:
    """A queue whose worker ``w`` has said that it lives, on a server that has been looked at."""
    queue.heartbeat("w", {}, now=NOW)
    return queue


def wait_with_fetch(queue: FairQueue, seconds: float = 30.0) -> PrefetchingWait:
    wait = PrefetchingWait(queue, seconds)
    assert wait.send_fetch(FETCH)
    return wait


def ids_of(leases: list[Lease]) -> list[str]:
    return [lease.task_id for lease in leases]


NAME = "test-wait"


@pytest.fixture
def named(server: Server, redis: Redis) -> Iterator[FairQueue]:
    """A queue like `known`, with a separate client, whose connections have a name."""
    with server.client(client_name=NAME) as client:
        queue = FairQueue(client)
        queue.heartbeat("w", {}, now=NOW)
        yield queue
    assert FairQueue(redis).check_invariants() == []


def kill_the_one_that_waits(redis: Redis) -> None:
    def waiting() -> list[str]:
        return [
            connection["id"]
            for connection in redis.client_list()
            if (connection["name"], connection["cmd"]) == (NAME, "bzpopmin")
        ]

    wait_for(lambda: len(waiting()) == 1)  # the server reads the command a little later
    (client,) = waiting()
    redis.client_kill_filter(_id=client)


def test_a_wait_for_work_returns_newly_pushed_tasks(known: FairQueue) -> None:
    wait = wait_with_fetch(known)
    known.push(task(task_id="t"), now=NOW)
    woken, settled = wait.end()
    assert woken
    assert settled is not None
    assert ids_of(settled.leases) == ["t"]
    known.finish(settled.leases[0], now=NOW)


def test_a_fetch_can_be_requested_while_another_thread_waits(known: FairQueue) -> None:
    wait, ends = PrefetchingWait(known, 30.0), list[Any]()
    thread = threading.Thread(target=lambda: ends.append(wait.end()))
    thread.start()
    assert wait.send_fetch(FETCH)
    assert not wait.send_fetch(FETCH), "once"
    known.push(task(task_id="t"), now=NOW)
    thread.join(10)
    ((woken, settled),) = ends
    assert woken
    assert ids_of(settled.leases) == ["t"]


def test_a_wait_without_a_requested_fetch_returns_no_leases(known: FairQueue) -> None:
    wait = PrefetchingWait(known, 30.0)
    known.push(task(), now=NOW)
    assert wait.end() == (True, None)
    assert not wait.send_fetch(FETCH), "the wait has ended"
    assert PrefetchingWait(known, 0.001).end() == (False, None)


def test_a_wait_that_times_out_fetches_tasks(known: FairQueue, redis: Redis) -> None:
    """A marker that was lost delays nothing for longer than the wait."""
    known.push(task(task_id="t"), now=NOW)
    redis.delete(known._shards.home.keys("wake"))
    woken, settled = wait_with_fetch(known, 0.001).end()
    assert not woken
    assert settled is not None
    assert ids_of(settled.leases) == ["t"]
    woken, settled = wait_with_fetch(known, 0.001).end()
    assert settled is not None
    assert (woken, settled.leases) == (False, [])


def test_the_wake_marker_is_set_again_while_tasks_remain(known: FairQueue) -> None:
    wait = wait_with_fetch(known)
    known.push_batch([task() for _ in range(3)], now=NOW)
    _, settled = wait.end()
    assert settled is not None
    assert len(settled.leases) == 2
    assert known.wait_for_work(0.001)


def test_a_worker_that_has_left_gets_no_lease_and_another_worker_is_woken(known: FairQueue) -> None:
    wait = wait_with_fetch(known)
    known.release_worker("w", forget=True, now=NOW)
    known.push(task(task_id="t"), now=NOW)
    woken, settled = wait.end()
    assert settled is not None
    assert (woken, settled.leases) == (True, [])
    assert known.wait_for_work(0.001)
    assert known.get_task("t").state is TaskState.QUEUED
    assert known.get_task("t").delivery == 0


def test_a_broken_connection_ends_only_the_wait(named: FairQueue, redis: Redis) -> None:
    wait = wait_with_fetch(named)
    kill_the_one_that_waits(redis)
    named.push(task(task_id="t"), now=NOW)
    woken, settled = wait.end()
    assert settled is not None
    assert (woken, ids_of(settled.leases)) == (False, ["t"])

    wait = PrefetchingWait(named, 30.0)
    kill_the_one_that_waits(redis)
    assert wait.send_fetch(FETCH), "only reading shows that the connection is gone"
    named.push(task(task_id="again"), now=NOW)
    _, settled = wait.end()
    assert settled is not None
    assert ids_of(settled.leases) == ["again"]

    wait = PrefetchingWait(named, 0.5)
    kill_the_one_that_waits(redis)
    named.push(task(), now=NOW)
    assert wait.end() == (True, None), "the wait starts again"


def test_a_lost_reply_of_a_wait_is_requested_again(known: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = wait_with_fetch(known)
    assert wait._pending_command is not None
    read = wait._pending_command.replies

    def lost() -> None:
        read()
        raise redis_py.ConnectionError("lost on its way")

    monkeypatch.setattr(wait._pending_command, "replies", lost)
    known.push(task(task_id="t"), now=NOW)
    _, settled = wait.end()
    assert settled is not None
    assert ids_of(settled.leases) == ["t"]
    known.finish(settled.leases[0], now=NOW)
    assert known.get_task("t").delivery == 1


def test_a_fetch_left_on_an_abandoned_connection_leases_nothing(named: FairQueue, redis: Redis) -> None:
    """The server may hold on to a connection that its client has given up, and carry out later what came over it."""
    wait = wait_with_fetch(named)
    assert wait._sent_fetch is not None
    command = wait._transport.first_command(wait._sent_fetch[1])
    kill_the_one_that_waits(redis)
    _, settled = wait.end()
    assert settled is not None
    assert settled.leases == []
    named.push(task(task_id="t"), now=NOW)
    redis.delete(named._shards.home.keys("wake"))  # that connection took the marker
    assert redis.execute_command(*command)[6:] == []
    assert named.get_task("t").state is TaskState.QUEUED
    assert named.wait_for_work(0.001), "another wait is woken for the task"


def test_functions_lost_during_a_wait_are_loaded_again(redis: Redis) -> None:
    queue = FairQueue(redis)
    queue.heartbeat("w", {}, now=NOW)
    wait = wait_with_fetch(queue)
    redis.function_flush("SYNC")
    queue.push(task(task_id="t"), now=NOW)
    _, settled = wait.end()
    assert settled is not None
    assert ids_of(settled.leases) == ["t"]


def test_a_server_that_refuses_waits_is_an_error_and_keeps_no_task(server: Server, redis: Redis) -> None:
    redis.acl_setuser("deaf", enabled=True, nopass=True, categories=["+@all"], commands=["-bzpopmin"], keys=["*"])
    with server.client(username="deaf", password="x") as client:
        queue = FairQueue(client)
        queue.heartbeat("w", {}, now=NOW)
        with pytest.raises(NotPermittedError, match="BZPOPMIN"):
            PrefetchingWait(queue, 30.0).end()
        with pytest.raises(NotPermittedError, match="BZPOPMIN"):
            wait_with_fetch(queue).end()
        queue.push(task(task_id="t"), now=NOW)
        _, settled = wait_with_fetch(queue).end()
        assert settled is not None
        assert ids_of(settled.leases) == ["t"], "the leased task is returned in spite of the error"
    redis.acl_deluser("deaf")


def test_clients_with_their_own_commands_wait_for_work_as_before(redis: Redis, server: Server) -> None:
    """A client that overrides methods, like a tracer's, is called through its own methods."""

    class Traced(redis_py.Redis):
        pass

    with Traced(unix_socket_path=server.socket) as client:
        queue = FairQueue(client)
        queue.heartbeat("w", {}, now=NOW)
        wait = PrefetchingWait(queue, 30.0)
        assert not wait.send_fetch(FETCH)
        queue.push(task(), now=NOW)
        assert wait.end() == (True, None)


def test_a_fetch_requested_at_any_moment_leases_no_task_unnoticed(known: FairQueue, redis: Redis) -> None:
    """The push, the fetch and the end of the wait run at once, many times. Each lease is returned exactly once."""
    for number in range(200):
        wait = PrefetchingWait(known, 0.001 * (number % 3 + 1))
        found = list[Any]()
        threads = [
            threading.Thread(target=lambda wait=wait: wait.send_fetch(FETCH)),
            threading.Thread(target=lambda: known.push(task(), now=NOW)),
            threading.Thread(target=lambda wait=wait, found=found: found.append(wait.end())),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        ((_, settled),) = found
        leases = settled.leases if settled is not None else []
        leases += known.pop_batch(5, "v", now=NOW)
        assert len(leases) == 1
        known.finish(leases[0], now=NOW)
        redis.delete(known._shards.home.keys("wake"))  # if it is left it would end the next wait at once
    assert known.check_invariants() == []
