"""Fetching and reporting over the shards: the shard whose turn it is first (`turns`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection import task_lookup as lookup
from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.model.outcome import Outcome, Settled
from django_fairque.engine.scripting.operations import Read, parse_scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.leasing.lease_ops import Fetch
    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.engine.model.records import TaskState
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shard_scheduler import ShardScheduler, ShardSchedulers
    from django_fairque.engine.sharding.shards import Shards

SHARD_WAIT_SECONDS = 0.1
"""Seconds for which one shard is waited for when there are several."""


def pop_batch(shards: Shards, orders: ShardSchedulers, fetch: Fetch, now: float | None) -> Operation[list[Lease]]:
    if len(shards) == 1:
        return (yield from leasing.pop_batch(shards.home, fetch, now))
    return (yield from _settle_all(shards, orders, [], fetch, now)).leases


def settle(
    shards: Shards, orders: ShardSchedulers, outcomes: Sequence[Outcome], fetch: Fetch, now: float | None
) -> Operation[Settled]:
    fetch = leasing.with_worker(fetch, outcomes)
    if len(shards) == 1:
        return (yield from leasing.settle(shards.home, outcomes, fetch, now))
    return (yield from _settle_all(shards, orders, outcomes, fetch, now))


def _settle_all(
    shards: Shards, orders: ShardSchedulers, outcomes: Sequence[Outcome], fetch: Fetch, now: float | None
) -> Operation[Settled]:
    """The outcomes to their shards, then fetches from one shard after the other, as their turns are."""
    fetch.to_lua_args(shards.config.lease_seconds)  # says what is wrong with it before anything is sent
    statuses: dict[int, str] = {}
    replies: list[Settled] = []
    parts: dict[Commands, list[int]] = {}
    for index, outcome in enumerate(outcomes):
        parts.setdefault(shards.of_lease(outcome.lease), []).append(index)
    for shard, indexes in parts.items():
        reply = yield from leasing.settle(shard, [outcomes[index] for index in indexes], replace(fetch, limit=0), now)
        statuses.update(zip(indexes, reply.statuses, strict=True))
        replies.append(reply)
    leases: list[Lease] = []
    serving, is_first = _serving(shards, fetch), True
    order = orders.of(fetch.users, fetch.steal, shards.number_of)
    while len(leases) < fetch.limit and serving:
        ready = (yield from _look(shards, order, serving, is_first=is_first)) or serving
        is_first = False
        index = order.next(ready)
        share = max(1, (fetch.limit - len(leases)) // (1 + len(order.same_order_shards(index, ready))))
        window = order.window(index, [each for each in ready if each != index])
        reply = yield from leasing.settle(shards.all[index], [], replace(fetch, limit=share, window=window), now)
        order.served(index, reply)
        replies.append(reply)
        leases += reply.leases
        has_more = bool(reply.leases) or order.has(index)
        serving = [each for each in serving if each != index or has_more]
    looks = [reply.look_at for reply in replies if reply.look_at is not None]
    return Settled(
        [statuses[index] for index in range(len(outcomes))],
        leases,
        max((reply.now for reply in replies), default=0.0),
        min(looks, default=None),
        has_messages=any(reply.has_messages for reply in replies),
    )


def _serving(shards: Shards, fetch: Fetch) -> list[int]:
    """The shards on which the users live that are to be served."""
    if fetch.users == "*" or fetch.steal == "*":
        return [index for index, shard in enumerate(shards.all) if shards.is_present(shard)]
    numbers = {shards.number_of(user) for user in (*fetch.users, *fetch.steal)}
    return sorted(index for index in numbers if shards.is_present(shards.all[index]))


def _look(shards: Shards, order: ShardScheduler, among: Sequence[int], *, is_first: bool) -> Operation[list[int]]:
    """Those that have somebody to serve, in one look, which tells where they stand."""
    rings = yield Read([("ZRANGE", shards.all[index].keys("ring"), 0, 0, "WITHSCORES") for index in among])
    firsts = {index: parse_scores(ring) for index, ring in zip(among, rings, strict=True)}
    for index, first in firsts.items():
        order.looked(index, first[0][1] if first else None, is_first=is_first)
    return [index for index, first in firsts.items() if first]


def finish(shards: Shards, lease: Lease, result: Any, took: float | None, now: float | None) -> Operation[None]:
    yield from leasing.finish(shards.of_lease(lease), lease, result, took, now)


def fail(
    shards: Shards,
    lease: Lease,
    error: BaseException | str,
    delay: float | None,
    took: float | None,
    now: float | None,
) -> Operation[TaskState]:
    return (yield from leasing.fail(shards.of_lease(lease), lease, error, delay, took, now))


def settle_one(shards: Shards, outcome: Outcome, now: float | None) -> Operation[str]:
    return (yield from leasing.settle_one(shards.of_lease(outcome.lease), outcome, now))


def renew(shards: Shards, leases: Sequence[Lease], lease: float | None, now: float | None) -> Operation[list[bool]]:
    if len(shards) == 1:
        return (yield from leasing.renew(shards.home, leases, lease, now))
    parts: dict[Commands, list[int]] = {}
    for index, each in enumerate(leases):
        parts.setdefault(shards.of_lease(each), []).append(index)
    renewed: dict[int, bool] = {}
    for shard, indexes in parts.items():
        answers = yield from leasing.renew(shard, [leases[index] for index in indexes], lease, now)
        renewed.update(zip(indexes, answers, strict=True))
    return [renewed[index] for index in range(len(leases))]


def take_over(
    shards: Shards, key: LeaseKey, worker: str, lease: float | None, now: float | None
) -> Operation[Lease | None]:
    for shard in shards:
        taken = yield from leasing.take_over(shard, key, worker, lease, now)
        if taken is not None:
            return taken
    return None


def set_progress(
    shards: Shards, lease: Lease, current: float, total: float, message: str, now: float | None
) -> Operation[None]:
    yield from lookup.set_progress(shards.of_lease(lease), lease, current, total, message, now)


def wait_for_work(shards: Shards, timeout: float) -> Operation[bool]:
    """Of several shards each is waited for in turn, for a tenth of a second; workers wait for all at once."""
    if len(shards) == 1:
        return (yield from leasing.wait_for_work(shards.home, timeout))
    pause = min(SHARD_WAIT_SECONDS, timeout / len(shards))
    for turn in range(max(len(shards), int(timeout / SHARD_WAIT_SECONDS)) if pause > 0 else 1):
        if (yield from leasing.wait_for_work(shards.all[turn % len(shards)], pause)):
            return True
    return False
