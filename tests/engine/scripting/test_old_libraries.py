"""Libraries of other versions are deleted when nobody has called them for a day."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.scripts import IDLE_FUNCTION, Command, assemble, library_name
from tests.engine.conftest import task

OLD = "fairque_old"


@pytest.fixture
def old(redis: Redis) -> Iterator[Redis]:
    """The server has another version's library, and none of this one."""
    command = Command("fairque_call_old", ["no-writes"], "", "return 1", ())
    redis.function_flush()
    redis.function_load(assemble(OLD, [command], {}), replace=True)
    yield redis
    redis.function_flush()


def libraries(redis: Redis) -> set[str]:
    return {line[1].decode() for line in redis.function_list()}


def ask(redis: Redis, ago: float) -> int:
    """Call the old library's function as if it were ``ago`` seconds earlier."""
    return int(redis.fcall(IDLE_FUNCTION.format(name=OLD), 0, str(int(time.time() - ago))))


def test_an_old_function_library_is_deleted_after_a_day_without_a_call(old: Redis) -> None:
    assert ask(old, 86_400 + 60) == 0
    FairQueue(old).push(task())
    assert libraries(old) == {library_name()}


async def test_an_async_client_deletes_an_old_function_library(old: Redis, aredis: AsyncRedis) -> None:
    ask(old, 86_400 + 60)
    await AsyncFairQueue(aredis).push(task())
    assert libraries(old) == {library_name()}


def test_an_old_function_library_that_is_still_called_remains(old: Redis) -> None:
    """A rolling deployment may last for days."""
    ask(old, 86_400 * 9)
    old.fcall("fairque_call_old", 0)
    FairQueue(old).push(task())
    assert libraries(old) == {OLD, library_name()}
    old.function_delete(library_name())
    FairQueue(old).push(task())
    assert libraries(old) == {OLD, library_name()}


def test_an_old_function_library_without_a_recorded_check_remains(old: Redis) -> None:
    FairQueue(old).push(task())
    assert libraries(old) == {OLD, library_name()}


def test_function_libraries_of_other_software_remain(old: Redis) -> None:
    old.function_load("#!lua name=fairque_of_somebody\nredis.register_function('somebodys', function() return 1 end)")
    FairQueue(old).push(task())
    assert libraries(old) == {OLD, library_name(), "fairque_of_somebody"}
