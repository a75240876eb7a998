"""Changes on many shards: what can be reached is changed, whatever is away, and then it is said what was not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import RedisConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Steps
    from django_fairque.engine.sharding.shards import Shards


def reach(
    shards: Shards, wanted: Iterable[Commands], act: Callable[[Commands], Steps[None]]
) -> Steps[dict[int, RedisConnectionError]]:
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


def add_up(
    shards: Shards,
    count: Callable[[Commands, int | None], Steps[int]],
    done: str,
    most: int | None = None,
    wanted: Iterable[Commands] | None = None,
) -> Steps[int]:
    """The sum of what ``count`` returns on all shards (or those that are wanted), at most ``most``; it is told how many of
    these are left.

    Raises:
        ShardsAwayError: it would be more if all could be reached. The text begins with the sum and ``done``, such as
            "tasks were canceled".
    """
    total = 0

    def act(shard: Commands) -> Steps[None]:
        nonlocal total
        # The first says what is wrong with a limit, and so must see it as it came.
        if not total or most is None or total < most:
            total += yield from count(shard, most - total if most and total else most)

    failures = yield from reach(shards, shards.all if wanted is None else wanted, act)
    if failures and (most is None or total < most):
        raise shards.away_error(failures, f"{total} {done}, and not all could be looked at") from next(
            iter(failures.values())
        )
    return total
