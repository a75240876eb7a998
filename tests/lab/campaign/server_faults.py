"""Faults of the server and of the connection to it. All of them run in the main thread, one after the other."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from django_fairque.engine.model.errors import FairQueueError, ServerRefusedError
from django_fairque.engine.model.task import Task

from . import proxy

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from .world import World

BACK_WITHIN = 20.0
"""Seconds after which a fleet that does not work again counts as stuck."""
DRAINED_WITHIN = 60.0
GROWN = 4 * 2**20
"""Bytes beyond what it was when it was rewritten, beyond which the server's file is rewritten."""


@contextmanager
def measured(world: World, fault: str) -> Iterator[None]:
    """Inside, the server is away; afterwards, seconds until a task is handed out again."""
    yield
    back = time.monotonic()
    world.recoveries.begin_again()
    before = [world.counter("started")]
    if world.wait(lambda: world.counter("started") > before[0], BACK_WITHIN, f"{fault}: nobody took a task again"):
        world.recoveries.add(fault, time.monotonic() - back)


def kill_server(world: World, chance: random.Random) -> bool:
    """SIGKILL, a moment of nothing, and a start from the append-only file."""
    _compact(world)
    with measured(world, "server"):
        world.server.kill()
        time.sleep(chance.uniform(0, 0.3))
        world.server.start()
    return True


def _compact(world: World) -> None:
    """Have the file rewritten if it has grown: it is read at each of a hundred starts.

    Only right before a kill: a server that has rewritten its file and then met a full disk left one behind that
    it could not read (Valkey 9.1.2; seen twice).
    """
    info = world.client.info("persistence")
    if int(info["aof_current_size"]) - int(info["aof_base_size"]) > GROWN:
        world.client.bgrewriteaof()
        world.wait(
            lambda: not world.client.info("persistence")["aof_rewrite_in_progress"],
            BACK_WITHIN,
            "server: its file was not rewritten",
        )


def forget_scripts(world: World, chance: random.Random) -> bool:
    with measured(world, "scripts"):
        world.client.script_flush()
        world.client.function_flush()
    return True


def kill_clients(world: World, chance: random.Random) -> bool:
    with measured(world, "clients"):
        world.client.execute_command("CLIENT", "KILL", "TYPE", "normal")
    return True


def break_network(world: World, chance: random.Random) -> bool:
    """One of four things, to the group and the producer that sit behind the proxy."""
    mode, one_in, seconds = chance.choice(
        [(proxy.DROP, 5, 1.0), (proxy.CUT, 5, 1.0), (proxy.SLOW, 1, 1.0), (proxy.HOLE, 2, 0.5)]
    )
    before = world.proxy.hits
    with world.proxy.doing(mode, one_in):
        time.sleep(seconds)
    world.recoveries.begin_again()
    name = f"network {mode}"
    world.figures[name] = world.figures.get(name, 0) + world.proxy.hits - before
    return True


def fill_memory(world: World, chance: random.Random) -> bool:
    """New tasks are refused in words; those that are there are run, without anybody's help, until none is left."""
    with world.aim:  # nobody is killed meanwhile: a backlog of tasks that die again and again does not drain
        used = int(world.client.info("memory")["used_memory"])
        world.client.config_set("maxmemory", used)
        try:
            _expect_refusal(world, "out of memory", "memory")
            since = time.monotonic()
            drained = world.wait(
                lambda: world.queue.get_stats(0).states["queued"] == 0,
                DRAINED_WITHIN,
                "memory: the backlog did not drain",
            )
            if drained:
                world.recoveries.add("memory (drained)", time.monotonic() - since)
        finally:
            world.client.config_set("maxmemory", 0)
    return True


def fill_disk(world: World, chance: random.Random) -> bool:
    """Changes are refused in words; once there is room again, all goes on."""
    if world.disk is None:
        return False
    world.client.config_set("appendfsync", "everysec")  # with `always` a server ends itself when its disk is full
    with measured(world, "disk"):
        with world.disk.full():
            _expect_refusal(world, "can't write to its disk", "disk")
        world.wait(lambda: world.client.info("persistence")["aof_last_write_status"] == "ok", 20, "disk: still full")
    world.client.config_set("appendfsync", "always")
    return True


def _expect_refusal(world: World, words: str, fault: str) -> None:
    """Push until the answer is no (what was buffered before is still taken), in these words."""

    def refused() -> bool:
        task = Task.create("campaign", 3, {"args": [0.0, "x"], "kwargs": {}}, name="campaign.work", max_retries=5)
        world.tell_push([task])
        try:
            world.queue.push(task)
        except ServerRefusedError as error:
            world.journal.write(what="fail", ids=[task.task_id], error=str(error))
            return words in str(error)
        except (FairQueueError, RedisError) as error:
            world.journal.write(what="info", ids=[task.task_id], error=str(error))
            return False
        world.journal.write(what="ok", ids=[task.task_id])
        return False

    world.wait(refused, 20, f"{fault}: a push was not refused with {words!r}")
