"""The shards of a queue: which of them a user, a task or a lease belongs to.

A user lives on one shard with all its tasks, so fairness between users, their limits and their order are each one
shard's business. Ids made here say their user's bucket, so a call about a task is a call to its shard; a task with a
chosen id is looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Protocol, TypeVar

from django_fairque.engine.model.durations import check_integer
from django_fairque.engine.model.errors import RedisConnectionError, ShardsAwayError
from django_fairque.engine.model.ids import bucket_in, bucket_of, check_id
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
        """Where what belongs to no user is kept."""
        self.missing: tuple[int, ...] = ()
        """The numbers of those that can't be reached, and are left out where all are gone through."""
        self.missing_now: Callable[[], Sequence[int]] = tuple
        """As ``missing``, as it is known at this moment."""

    def but(self, missing: Iterable[int]) -> Shards:
        """The same shards, of which these can't be reached."""
        others = copy(self)
        others.missing = tuple(missing)
        return others

    def is_present(self, shard: Commands) -> bool:
        return shard.keys.shard not in self.missing

    def check_present(self, what: str) -> None:
        """Raise `ShardsAwayError` if a shard can't be reached. ``what`` begins its message: what could not be done."""
        if self.missing:
            raise self.away_error(self.missing, what)

    def away_error(self, missing: Iterable[int], what: str) -> ShardsAwayError:
        """What says that these (their numbers) can't be reached; ``what`` is what came of it."""
        numbers = tuple(sorted(missing))
        return ShardsAwayError(
            f"{what}: {describe_shards(numbers)} of queue {self.name!r} can't be reached; is the cluster's node running that "
            f"has {'it' if len(numbers) == 1 else 'them'}?",
            numbers,
        )

    def spread_over(self, number: int) -> Shards:
        """The same queue with this number of shards, whatever is configured."""
        check_integer(number, "shards", 1, MAX_SHARDS)
        return Shards(self.name, self.config.model_copy(update={"shards": number}))

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Commands]:
        """Those that can be reached."""
        return (shard for shard in self.all if self.is_present(shard)) if self.missing else iter(self.all)

    def of(self, name: str) -> Commands:
        """The shard of a user, a run or a namespace."""
        return self.home if len(self.all) == 1 else self.all[self.number_of(name)]

    def number_of(self, name: str) -> int:
        """As `of`: which of them it is."""
        return bucket_of(name) % len(self.all)

    def of_lease(self, lease: Lease) -> Commands:
        """Raises `TaskValidationError` for what is no lease."""
        check_lease(lease)
        return self.home if len(self.all) == 1 else self.all[lease.shard]

    def shard_in_id(self, task_id: str) -> Commands | None:
        """The shard that an id names; None for a chosen one, when there are several."""
        if len(self.all) == 1:
            return self.home
        bucket = bucket_in(task_id)
        return None if bucket is None else self.all[bucket % len(self.all)]

    def locate(
        self, task_ids: Iterable[str], near: Mapping[str, Commands] | None = None
    ) -> Operation[dict[str, Commands]]:
        """Where each of these tasks is; a chosen id that no shard knows is taken to be at home. One look for those.

        Users of several shards may have tasks of one chosen id: ``near`` says by id which shard's is meant, if it has one.
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
        """Where one task is."""
        return (yield from self.locate([task_id]))[task_id]

    def around(self, task_ids: Iterable[str], near: Commands | None = None) -> Operation[Commands]:
        """Commands that read each of these tasks, and any that says its shard, where it is (`locate`)."""
        if len(self.all) == 1:
            return self.home
        ids = list(task_ids)
        return Across(self, (yield from self.locate(ids, dict.fromkeys(ids, near) if near else None)))

    def across(self) -> Commands:
        """As `around`, for tasks that say their shard, for users, runs and namespaces."""
        return self.home if len(self.all) == 1 else Across(self, {})


def describe_shards(numbers: Sequence[int]) -> str:
    """``shard 3``, or ``shards 3, 7``."""
    return f"shard{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


class Across(Commands):
    """Reads all over the shards: each key is that of the shard on which its user or task lies."""

    def __init__(self, shards: Shards, places: Mapping[str, Commands]) -> None:
        self.name, self.config = shards.name, shards.config
        self.keys = _KeysAcross(shards, places)

    def call(self, script: str, args: Iterable[Any], now: float | None, **names: str) -> ScriptCall:  # noqa: ARG002
        raise AssertionError(f"{script} changes one shard and must be sent to it")


class _KeysAcross(Keys):
    def __init__(self, shards: Shards, places: Mapping[str, Commands]) -> None:
        super().__init__(shards.config.prefix, shards.name)
        self._shards, self._places = shards, places

    def of(self, task_id: str) -> Keys:
        there = self._shards.shard_in_id(task_id) or self._places.get(task_id, self._shards.home)
        return there.keys

    def of_user(self, name: str) -> Keys:
        return self._shards.of(name).keys

    def everywhere(self) -> Sequence[Keys]:
        return [shard.keys for shard in self._shards.all]


def indexes_by_shard(places: Iterable[Commands | None]) -> dict[Commands, list[int]]:
    """The indexes of these, the shards of as many tasks or leases, by shard; without those that are None."""
    found: dict[Commands, list[int]] = {}
    for index, shard in enumerate(places):
        if shard is not None:
            found.setdefault(shard, []).append(index)
    return found


def change_each(
    shards: Shards, wanted: Iterable[Commands], act: Callable[[Commands], Operation[None]]
) -> Operation[dict[int, RedisConnectionError]]:
    """``act`` on each of these; returns why it could not on which, by their numbers.

    Those that are known to be away come last, and the first of these that fails is the last that is tried: a node that does
    not answer is waited for once.
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
    """Return the sum of what ``count`` returns on all shards, or on those that are wanted; it is at most ``most``.

    ``count`` is called with the number that may still be added.

    Raises:
        ShardsAwayError: it would be more if all could be reached. The text begins with the sum and ``done``, such as
            "tasks were canceled".
    """
    total = 0

    def act(shard: Commands) -> Operation[None]:
        nonlocal total
        # The first says what is wrong with a limit, and so must see it as it came.
        if not total or most is None or total < most:
            total += yield from count(shard, most - total if most and total else most)

    failures = yield from change_each(shards, shards.all if wanted is None else wanted, act)
    if failures and (most is None or total < most):
        cause = next(iter(failures.values()))
        raise shards.away_error(failures, f"{total:,} {done}, and not all could be looked at") from cause
    return total


class AllShardsReader(Protocol):
    """Sends requests to all shards, or to those that answer."""

    def __call__(self, read: Callable[[Shards], Operation[R]], /) -> R: ...


class AsyncAllShardsReader(Protocol):
    """As `AllShardsReader`, awaited."""

    async def __call__(self, read: Callable[[Shards], Operation[R]], /) -> R: ...
