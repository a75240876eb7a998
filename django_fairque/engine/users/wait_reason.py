"""The facts that decide whether and when a task starts, read at one moment. Nothing is judged here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.task_lookup import position_on_shard
from django_fairque.engine.model.durations import seconds
from django_fairque.engine.model.pauses import PAUSE_FIELDS, Pause, decode_pause
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.scripting.commands import ORGANIZATION_PREFIX, Commands
from django_fairque.engine.scripting.operations import Operation, Read
from django_fairque.engine.scripting.task_fields import read_fields
from django_fairque.engine.users.organizations import OrganizationStats, combine_records
from django_fairque.engine.users.users import UserStats, users_stats

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards


@dataclass(frozen=True)
class WaitReason:
    """Why a task waits. Moments are Unix times of the engine.

    ``task_id`` and ``state`` are the task's; ``now`` is when they were read. ``is_paused`` is whether the queue is.
    ``user`` has its user's figures. ``user_free_at`` is when the rate allows its user another task, None if it does
    now. ``users_before`` have their turn earlier (at least; for a member of an organization: organizations and members
    before it), None when the user can't be served now. ``position`` is that of `FairQueue.position`. ``lease_ends_at``
    is of a running task. ``organization`` is its user's, with the figures of the user's shard.
    """

    task_id: str
    state: TaskState
    now: float
    is_paused: bool
    user: UserStats
    user_free_at: float | None
    users_before: int | None
    position: int | None
    lease_ends_at: float | None
    organization: OrganizationStats | None = None
    pause: Pause | None = None
    """The note and the end of the queue's pause; None unless it is paused."""


def read_wait_reason(shards: Shards, task_id: str) -> Operation[WaitReason]:
    """Read why a task waits, in at most five round trips, and one more for a chosen id."""
    commands = yield from shards.of_task(task_id)
    keys = commands.keys
    ((state, user),), ((paused, note, clock), time) = yield from read_fields(
        [(keys, task_id)], ("state", "user"), [("HMGET", keys("stats"), *PAUSE_FIELDS, "clock"), ("TIME",)]
    )
    if state is None or user is None:
        raise commands.unknown(task_id)
    name = user.decode()
    (stats,) = yield from users_stats(commands, [name])
    lease_end, free_at, *found = yield Read(
        [("ZSCORE", keys.state("started"), task_id), ("ZSCORE", keys("throttled"), name), *_turn(commands, stats)]
    )
    pause = decode_pause({b"paused": paused, b"pause_note": note})
    if free_at is not None and stats.pause is not None and float(free_at) / 1_000_000 == stats.pause.until:
        free_at = None  # this is the end of the user's pause
    organization = None if stats.organization is None else combine_records(stats.organization, [found.pop()])
    turn = None if None in found else sum(map(int, found))
    return WaitReason(
        task_id=task_id,
        state=TaskState(state.decode()),
        now=max(int(time[0]) + int(time[1]) / 1_000_000, seconds(clock) or 0.0),
        is_paused=pause is not None,
        user=stats,
        user_free_at=None if free_at is None else float(free_at) / 1_000_000,
        users_before=turn,
        position=(yield from position_on_shard(commands, task_id)),
        lease_ends_at=None if lease_end is None else float(lease_end) / 1_000_000,
        organization=organization,
        pause=pause,
    )


def _turn(commands: Commands, user: UserStats) -> list[tuple[Any, ...]]:
    """Return the reads of the user's rank in the ring; for a member, of its organization's rank, its rank among the
    members, and the organization's record.
    """
    keys = commands.keys
    if user.organization is None:
        return [("ZRANK", keys("ring"), user.user_id)]
    entry = ORGANIZATION_PREFIX + user.organization.encode()
    return [
        *(("ZRANK", keys("ring"), entry), ("ZRANK", keys.members(user.organization), user.user_id)),
        ("HGETALL", keys.organization(user.organization)),
    ]
