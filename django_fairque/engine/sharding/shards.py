"""The shards of a queue: which of them a user, a task or a lease belongs to.

A user lives on one shard with all its tasks, so each shard alone decides about fairness between its users, their limits
and their order. A generated task id contains the bucket of its user, so a call about the task goes to its shard. A task
with a chosen id is searched on all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Protocol, TypeVar

from django_fairque.engine.model.durations import check_integer
from django_fairque.engine.model.errors import RedisConnectionError, ShardsAwayError
from django_fairque.engine.model.ids import check_id, compute_bucket, parse_bucket
from django_fairque.engine.model.lease import Lease, check_lease
from django_fairque.engine.model.options import MAX_SHARDS, QueueConfig
from django_fairque.engine.scripting.commands import Commands, Keys
from django_fairque.engine.scripting.operations import Operation, Read, ScriptCall

R = TypeVar("R")


class Shards:
    """All shards of a queue, or ``only`` one of them."""

    def __init__(self, name: str, config: QueueConfig, only: int | None = None) -> None:
        self.name = name
        self.config = config
        numbers = range(config.shards) if only is None else (only,)
        self.all = tuple(Commands(name, config, number) for number in numbers)
        self.home = self.all[0]
        """The shard for data that belongs to no user."""
        self.missing: tuple[int, ...] = ()
        """The numbers of the shards that can't be reached; iteration leaves them out."""
        self.missing_now: Callable[[], Sequence[int]] = tuple
        """Returns the missing shards that are known at this moment; ``missing`` was set earlier."""

    def but(self, missing: Iterable[int]) -> Shards:
        """Return the same shards, with these numbers marked as missing."""
        others = copy(self)
        others.missing = tuple(missing)
        return others

    def is_present(self, shard: Commands) -> bool:
        return shard.keys.shard not in self.missing

    def check_present(self, what: str) -> None:
        """Raise `ShardsAwayError` if a shard can't be reached. ``what`` begins its message, and names the operation
        that failed.
        """
        if self.missing:
            raise self.away_error(self.missing, what)

    def away_error(self, missing: Iterable[int], what: str) -> ShardsAwayError:
        """Return the error for shards (by number) that can't be reached. ``what`` begins its message: the operation
        that failed.
        """
        numbers = tuple(sorted(missing))
        return ShardsAwayError(
            f"{what}: {describe_shards(numbers)} of queue {self.name!r} can't be reached; is the cluster's node running that "
            f"has {'it' if len(numbers) == 1 else 'them'}?",
            numbers,
        )

    def with_shard_count(self, number: int) -> Shards:
        """Return the same queue with this number of shards instead of the configured number."""
        check_integer(number, "shards", 1, MAX_SHARDS)
        return Shards(self.name, self.config.model_copy(update={"shards": number}))

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Commands]:
        """Yield the shards that can be reached."""
        return (shard for shard in self.all if self.is_present(shard)) if self.missing else iter(self.all)

    def get_shard(self, name: str) -> Commands:
        """Return the shard of a user, a run or a namespace."""
        return self.home if len(self.all) == 1 else self.all[self.get_shard_index(name)]

    def get_shard_index(self, name: str) -> int:
        """Return the index of the shard that `get_shard` returns."""
        return compute_bucket(name) % len(self.all)

    def of_lease(self, lease: Lease) -> Commands:
        """Return the shard of a lease. Raises `TaskValidationError` if ``lease`` is not a lease."""
        check_lease(lease)
        return self.home if len(self.all) == 1 else self.all[lease.shard]

    def shard_in_id(self, task_id: str) -> Commands | None:
        """Return the shard that an id names; None for a chosen id, if there are several shards."""
        if len(self.all) == 1:
            return self.home
        bucket = parse_bucket(task_id)
        return None if bucket is None else self.all[bucket % len(self.all)]

    def locate(
        self, task_ids: Iterable[str], near: Mapping[str, Commands] | None = None
    ) -> Operation[dict[str, Commands]]:
        """Return the shard of each task. A chosen id that no shard knows belongs to the home shard. All chosen ids are
        looked up in one read.

        Users of several shards may have tasks with one chosen id: ``near`` names the preferred shard by id, if it has
        the task.
        """
        found: dict[str, Commands] = {}
        unknown: list[str] = []
        for task_id in task_ids:
            if (known := self.shard_in_id(check_id(task_id, "task_id"))) is None:
                unknown.append(task_id)
            else:
                found[task_id] = known
        if unknown:
            living = tuple(self)
            reads = [("EXISTS", *shard.keys.of_task(task_id)) for task_id in unknown for shard in living]
            there = iter((yield Read(reads)))
            for task_id in unknown:
                holders = [shard for shard in living if next(there)]
                if not holders:
                    self.check_present(f"the task {task_id!r} can't be located")
                meant = (near or {}).get(task_id)
                found[task_id] = meant if meant in holders else holders[0] if holders else self.home
        return found

    def of_task(self, task_id: str) -> Operation[Commands]:
        """Return the shard of one task."""
        return (yield from self.locate([task_id]))[task_id]

    def route_tasks(self, task_ids: Iterable[str], near: Commands | None = None) -> Operation[Commands]:
        """Return commands that read each of these tasks on its shard (`locate`), and any task whose id names its shard."""
        if len(self.all) == 1:
            return self.home
        ids = list(task_ids)
        return Across(self, (yield from self.locate(ids, dict.fromkeys(ids, near) if near else None)))

    def route_names(self) -> Commands:
        """Return commands that read users, runs, namespaces, and tasks whose ids name their shard, each on its shard."""
        return self.home if len(self.all) == 1 else Across(self, {})


def describe_shards(numbers: Sequence[int]) -> str:
    """Return a text such as ``shard 3``, or ``shards 3, 7``."""
    return f"shard{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


class Across(Commands):
    """Commands that read keys of several shards: each key is read on the shard of its user or task."""

    def __init__(self, shards: Shards, places: Mapping[str, Commands]) -> None:
        self.name, self.config = shards.name, shards.config
        self.keys = _KeysAcross(shards, places)

    def call(self, script: str, args: Iterable[Any], now: float | None, **names: str) -> ScriptCall:  # noqa: ARG002
        raise AssertionError(f"{script} changes one shard and must be sent to it")


class _KeysAcross(Keys):
    def __init__(self, shards: Shards, places: Mapping[str, Commands]) -> None:
        super().__init__(shards.config.prefix, shards.name)
        self._shards, self._places = shards, places

    def get_shard_keys(self, task_id: str) -> Keys:
        there = self._shards.shard_in_id(task_id) or self._places.get(task_id, self._shards.home)
        return there.keys

    def of_user(self, name: str) -> Keys:
        return self._shards.get_shard(name).keys

    def everywhere(self) -> Sequence[Keys]:
        return [shard.keys for shard in self._shards.all]


def indexes_by_shard(places: Iterable[Commands | None]) -> dict[Commands, list[int]]:
    """Return, for each shard, the indexes at which it is in ``places``, the list of the shards of some tasks or leases.
    Entries that are None are left out.
    """
    found: dict[Commands, list[int]] = {}
    for index, shard in enumerate(places):
        if shard is not None:
            found.setdefault(shard, []).append(index)
    return found


def change_each(
    shards: Shards, wanted: Iterable[Commands], act: Callable[[Commands], Operation[None]]
) -> Operation[dict[int, RedisConnectionError]]:
    """Run ``act`` on each of these shards; return the errors by the numbers of the shards where it failed.

    Shards that are known to be unreachable come last. After the first of these shards fails, the other unreachable
    shards are not tried, so that the call waits only once for a node that does not answer.
    """
    failures: dict[int, RedisConnectionError] = {}
    for shard in sorted(wanted, key=shards.is_present, reverse=True):
        number = shard.keys.shard
        if failures and number in shards.missing_now():
            failures[number] = next(iter(failures.values()))
            continue
        try:
            yield from act(shard)
        except RedisConnectionError as error:
            if number not in shards.missing_now():
                raise
            failures[number] = error
    return failures


def sum_over_shards(
    shards: Shards,
    count: Callable[[Commands, int | None], Operation[int]],
    done: str,
    most: int | None = None,
    wanted: Iterable[Commands] | None = None,
) -> Operation[int]:
    """Return the sum of the results of ``count`` on all shards, or on the ``wanted`` shards; at most ``most``.

    ``count`` is called with the number that may still be added.

    Raises:
        ShardsAwayError: the sum would be larger if all shards could be reached. The text begins with the sum and ``done``,
            such as "tasks were canceled".
    """
    total = 0

    def act(shard: Commands) -> Operation[None]:
        nonlocal total
        # The first call checks the limit, so it must get the limit unchanged.
        if not total or most is None or total < most:
            total += yield from count(shard, most - total if most and total else most)

    failures = yield from change_each(shards, shards.all if wanted is None else wanted, act)
    if failures and (most is None or total < most):
        cause = next(iter(failures.values()))
        raise shards.away_error(failures, f"{total:,} {done}, and not all could be looked at") from cause
    return total


class AllShardsReader(Protocol):
    """Sends requests to all shards, or only to the shards that answer."""

    def __call__(self, read: Callable[[Shards], Operation[R]], /) -> R: ...


class AsyncAllShardsReader(Protocol):
    """Sends requests like `AllShardsReader`, and is awaited."""

    async def __call__(self, read: Callable[[Shards], Operation[R]], /) -> R: ...
