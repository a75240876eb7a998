"""What keeps a queue going, and what operators do to all of it, over its shards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from django_fairque.engine.inspection import task_lookup as lookup
from django_fairque.engine.inspection import task_lookup as runs
from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.maintenance import operations as maintenance
from django_fairque.engine.maintenance import operations as repairing
from django_fairque.engine.model.durations import check_integer
from django_fairque.engine.model.errors import TaskNotFoundError, TaskValidationError
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.sharding.shards import change_each, sum_over_shards
from django_fairque.engine.statistics import health as alerting
from django_fairque.engine.users import users as purging

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from django_fairque.engine.inspection.task_lookup import Note
    from django_fairque.engine.leasing.lease_ops import Heartbeat
    from django_fairque.engine.maintenance.operations import Repair, Sweep
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards
    from django_fairque.engine.statistics.health import Alert


def heartbeat(
    shards: Shards, worker: str, info: Mapping[str, str], lease: float | None, ttl: float, now: float | None
) -> Operation[Heartbeat]:
    beats = []
    for shard in shards:
        beats.append((yield from leasing.heartbeat(shard, worker, info, lease, ttl, now)))
    revoked = [key for beat in beats for key in beat.revoked]
    worker_commands = [beat.command for beat in beats if beat.command is not None]
    command = max(worker_commands, key=lambda each: each.at, default=None)
    return leasing.Heartbeat(
        sum(beat.renewed for beat in beats),
        revoked,
        command,
        max(beat.epoch for beat in beats),
        sum(beat.token for beat in beats),
        max(beat.at for beat in beats),
        " ".join(beat.server for beat in beats),
    )


def set_worker_command(shards: Shards, worker: str, command: str, now: float | None) -> Operation[bool]:
    is_known = False
    for shard in shards:
        is_known = (yield from leasing.set_worker_command(shard, worker, command, now)) or is_known
    return is_known


def release_worker(
    shards: Shards,
    worker: str,
    crashed: Iterable[int],
    reason: str,
    forget: bool,
    now: float | None,
    started: Iterable[int] = (),
) -> Operation[int]:
    tokens, others, total = list(crashed), list(started), 0
    if (tokens or others) and len(shards) > 1:  # each counts for itself: one's token 7 is not another's
        raise TaskValidationError(
            f"crashed: tokens are of one shard, and queue {shards.name!r} has {len(shards)}; "
            "call release_worker of the one that handed them out (queue.shards)"
        )
    for shard in shards:
        total += yield from leasing.release_worker(shard, worker, tokens, reason, forget, now, others)
    return total


def reconcile_worker(
    shards: Shards, worker: str, held: Iterable[int], reason: str, now: float | None
) -> Operation[int]:
    tokens, total = list(held), 0
    if tokens and len(shards) > 1:
        raise TaskValidationError(
            f"held: tokens belong to one shard, and queue {shards.name!r} has {len(shards)}; "
            "call reconcile_worker of the shard that handed them out (queue.shards)"
        )
    for shard in shards:
        total += yield from leasing.reconcile_worker(shard, worker, tokens, reason, now)
    return total


def sweep(shards: Shards, now: float | None) -> Operation[Sweep]:
    whole: Sweep | None = None
    for shard in shards:
        one = yield from maintenance.sweep(shard, now)
        whole = one if whole is None else _together(whole, one)
    assert whole is not None  # noqa: S101 - a queue has a shard
    return whole


def _together(left: Sweep, right: Sweep) -> Sweep:
    counted = (
        "due",
        "reaped",
        "expired",
        "overdue",
        "freed",
        "forgotten",
        "dropped",
        "at_risk",
        "promoted",
        "alerts",
        "messages",
    )
    return replace(
        left,
        more=left.more or right.more,
        now=max(left.now, right.now),
        **{name: getattr(left, name) + getattr(right, name) for name in counted},
        look_at=_earlier(left.look_at, right.look_at),
        schedule_at=_earlier(left.schedule_at, right.schedule_at),
    )


def _earlier(left: float | None, right: float | None) -> float | None:
    return min((each for each in (left, right) if each is not None), default=None)


def set_paused(shards: Shards, now: float | None, *, paused: bool) -> Operation[None]:
    """The shards that can be reached, then `ShardsAwayError` for the others."""
    for shard in shards:
        yield from maintenance.set_paused(shard, now, paused=paused)
    shards.check_present(f"{'paused' if paused else 'resumed'} without some")


def cancel(shards: Shards, task_id: str, reason: str, now: float | None) -> Operation[bool]:
    return (yield from lookup.cancel((yield from shards.of_task(task_id)), task_id, reason, now))


def cancel_some(shards: Shards, task_ids: Sequence[str], reason: str, note: Note, now: float | None) -> Operation[int]:
    parts = yield from by_shard(shards, lookup.checked_ids(task_ids))

    def cancel(shard: Commands, _: object) -> Operation[int]:
        return (yield from lookup.cancel_some(shard, parts[shard], reason, note, now))

    return (yield from sum_over_shards(shards, cancel, "tasks were canceled", wanted=parts))


def run_now(shards: Shards, task_ids: Sequence[str], now: float | None) -> Operation[int]:
    parts = yield from by_shard(shards, lookup.checked_ids(task_ids))

    def run_now(shard: Commands, _: object) -> Operation[int]:
        return (yield from lookup.run_now(shard, parts[shard], now))

    return (yield from sum_over_shards(shards, run_now, "tasks were queued", wanted=parts))


def ignore_dependencies(shards: Shards, task_id: str, now: float | None) -> Operation[bool]:
    return (yield from lookup.ignore_dependencies((yield from shards.of_task(task_id)), task_id, now))


def by_shard(shards: Shards, task_ids: Sequence[str]) -> Operation[dict[Commands, list[str]]]:
    """The ids that lie on each shard, in their order."""
    places = yield from shards.locate(task_ids)
    found: dict[Commands, list[str]] = {}
    for task_id in task_ids:
        found.setdefault(places[task_id], []).append(task_id)
    return found


def cancel_run(shards: Shards, run_id: str, reason: str, note: Note, now: float | None) -> Operation[int]:
    check_id(run_id, "run_id")
    unknown = list[TaskNotFoundError]()

    def cancel(shard: Commands, _: object) -> Operation[int]:
        try:
            return (yield from runs.cancel_run(shard, run_id, reason, note, now))
        except TaskNotFoundError as error:  # it has no members there
            unknown.append(error)
            return 0

    total = yield from sum_over_shards(shards, cancel, f"tasks of run {run_id!r} were canceled")
    if len(unknown) == len(shards):
        raise unknown[0]
    return total


def take_alerts(shards: Shards, limit: int, now: float | None) -> Operation[list[Alert]]:
    """What was taken is handed out, whatever can't be reached: the others' are there the next time."""
    check_integer(limit, "limit", 1, alerting.MAX_ALERTS)
    found: list[Alert] = []

    def take(shard: Commands) -> Operation[None]:
        if len(found) < limit:
            found.extend((yield from alerting.take_alerts(shard, limit - len(found), now)))

    failures = yield from change_each(shards, shards.all, take)
    if failures and not found:
        raise next(iter(failures.values()))
    return sorted(found, key=lambda alert: alert.at)


def purge(shards: Shards, limit: int, note: Note, now: float | None) -> Operation[int]:
    def cancel(shard: Commands, left: int | None) -> Operation[int]:
        return (yield from purging.purge(shard, left if left is not None else limit, note, now))

    return (yield from sum_over_shards(shards, cancel, "tasks were canceled", limit))


def repair(shards: Shards, now: float | None) -> Operation[list[Repair]]:
    done: list[Repair] = []

    def fix(shard: Commands, _: object) -> Operation[int]:
        some = yield from repairing.repair(shard, now)
        done.extend(some)
        return len(some)

    yield from sum_over_shards(shards, fix, "repairs were made")
    return done
