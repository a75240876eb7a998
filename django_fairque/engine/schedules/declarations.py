"""Declared schedules: which version's declarations are in force, and how they are stored in the queue
(``lua/commands/declare.lua``).

A version is the version of the project's code and a digest of its declarations. The declarations of the newest
deployment are in force. An old process that restarts during a deployment changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from django_fairque.engine.inspection.task_lookup import server_time
from django_fairque.engine.model.durations import to_us
from django_fairque.engine.model.ids import check_text
from django_fairque.engine.model.signature import sign_payload
from django_fairque.engine.schedules import schedule_ops
from django_fairque.engine.scripting.acts import Act, Values, record_act
from django_fairque.engine.scripting.operations import Operation, Read

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.schedules.schedule_ops import Schedule, Template
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards

VersionAction = Literal["start", "renew", "leave", "adopt"]
WORKER_SECONDS = 30.0
"""Seconds for which a worker counts as running after it has reported its version."""
ADOPTED_SECONDS = 600.0
"""Seconds in which workers with an adopted version must start."""
RETIRED_SECONDS = 30 * 86_400.0
"""Seconds for which a schedule that a newer version has removed is kept for the older version."""
KEPT_OPTIONS = (
    *("cron", "every", "timezone", "start", "missed", "catch_up", "overlap", "jitter", "expires", "enabled"),
    *("pause_note", "pause_until"),
)
"""The fields of a removed schedule that are restored with it, because an operator may have changed them."""
RETIRED_KEY = "schedules:retired"
VERSIONS_KEY = "schedules:versions"
WORKERS_KEY = "schedules:workers"
MAX_CODE_VERSION_CHARACTERS = 100


@dataclass(frozen=True)
class DeclaredVersion:
    """The ``version`` whose declared schedules are in force. ``number`` is higher than those of all versions that were
    in force before.
    """

    version: str
    number: int


@dataclass(frozen=True)
class RunningVersion:
    """A ``version`` of declared schedules. ``workers`` is the number of running workers with it, and ``is_in_force`` is
    whether its declarations are in force.
    """

    version: str
    workers: int
    is_in_force: bool


@dataclass(frozen=True)
class DeclaredSchedule:
    """A declared schedule: ``task`` and ``options`` as `Schedules.add` takes them, and a ``digest`` of its declaration."""

    task: Task | Template
    options: Mapping[str, Any]
    digest: str


def version_name(code_version: str | None, digest: str) -> str:
    """Return the name of a version: its ``code_version`` and the ``digest`` of its declarations."""
    text = "".join(char for char in code_version or "" if char.isprintable())[:MAX_CODE_VERSION_CHARACTERS]
    return f"{text} {digest}"


def display_version(version: str) -> str:
    """Return a version for people: its code version, or the digest of its declarations if it has none."""
    code_version, _, digest = version.rpartition(" ")
    return code_version or digest


def have_equal_declarations(first: str, second: str) -> bool:
    """Return whether two versions declare the same schedules."""
    return first.rpartition(" ")[2] == second.rpartition(" ")[2]


def report_version(
    shards: Shards, action: VersionAction, version: str, worker: str, now: float | None
) -> Operation[DeclaredVersion]:
    check_text(version, "version")
    check_text(worker, "worker")
    seconds = ADOPTED_SECONDS if action == "adopt" else WORKER_SECONDS

    def report() -> Operation[DeclaredVersion]:
        number, current = yield shards.home.call("declare", [action, version, worker, to_us(seconds)], now)
        return DeclaredVersion(current.decode(), int(number))

    if action != "adopt":
        return (yield from report())

    def read_version() -> Operation[Values]:
        (current,) = yield Read([("HGET", shards.home.keys(VERSIONS_KEY), "")])
        return {"version": (current or b"").partition(b" ")[2].decode(errors="replace")}

    return (yield from record_act(Act(shards.name, "adopt", "queue"), report(), read_version))


def running_versions(shards: Shards, now: float | None) -> Operation[list[RunningVersion]]:
    moment = yield from server_time(now)
    of_workers = ("ZRANGEBYSCORE", shards.home.keys(WORKERS_KEY), f"({to_us(moment)}", "+inf")
    members, current = yield Read([of_workers, ("HGET", shards.home.keys(VERSIONS_KEY), "")])
    in_force = (current or b"").partition(b" ")[2]
    workers = Counter(member.partition(b"\0")[0] for member in members)
    return [
        RunningVersion(version.decode(errors="replace"), count, is_in_force=version == in_force)
        for version, count in sorted(workers.items())
    ]


def declare(
    shards: Shards,
    declared: Mapping[str, DeclaredSchedule],
    counting: DeclaredVersion,
    keep: Container[str],
    now: float | None,
) -> Operation[bool]:
    """Make the declared schedules of all shards agree with these. Returns False if the declarations of a newer version
    are in force by now.
    """
    try:
        known: dict[str, tuple[Commands, Schedule]] = {}
        former: dict[str, tuple[float, Schedule]] = {}
        for shard in shards:
            if shard is not shards.home:
                yield shard.call("declare", ["note", counting.version, "", counting.number], now)
            known |= {
                schedule.name: (shard, schedule) for schedule in (yield from schedule_ops.schedules_of_shard(shard))
            }
            for name, found in (yield from _retired_on_shard(shard, now)).items():
                former[name] = max(former.get(name, found), found, key=lambda pair: pair[0])
        for name, declaration in declared.items():
            if name in known and _is_unchanged(*known[name], declaration):
                continue
            yield from _add(
                shards, name, declaration, counting.number, former[name][1] if name in former else None, now
            )
        for name, (shard, schedule) in known.items():
            if schedule.source == schedule_ops.DECLARED_SOURCE and name not in declared and name not in keep:
                yield from schedule_ops.retire(shard, schedule, counting.number, now)
    except schedule_ops.OutdatedVersionError:
        return False
    return True


def _is_unchanged(shard: Commands, schedule: Schedule, declaration: DeclaredSchedule) -> bool:
    """Return whether a stored schedule has this declaration, and a valid signature. SECRET_KEY or SIGNING may have
    changed since it was signed.
    """
    if schedule.declared != declaration.digest:
        return False
    fields = schedule.signed_fields(shard.config.prefix, shard.name)
    return sign_payload(fields, shard.config.signing_key.read()).decode() == schedule.signature


def _add(
    shards: Shards, name: str, declaration: DeclaredSchedule, number: int, former: Schedule | None, now: float | None
) -> Operation[None]:
    options = {**declaration.options, "source": schedule_ops.DECLARED_SOURCE, "declared": declaration.digest}
    if former is not None and former.declared != declaration.digest:
        former = None
    # Restore the fields that an operator may change. The stored task is not restored, because it would be signed
    # without a check.
    if former is not None:
        options |= {option: getattr(former, option) for option in KEPT_OPTIONS}
    there, others = yield from schedule_ops.places(shards, name, declaration.task)
    change = schedule_ops.DeclaredChange(number, former)
    for shard in others:
        yield from schedule_ops.remove(shard, name, now)
    yield from schedule_ops.add_on_shard(
        there, name, declaration.task, schedule_ops.check_options(options), now, change
    )


def _retired_on_shard(shard: Commands, now: float | None) -> Operation[dict[str, tuple[float, Schedule]]]:
    """Read the schedules that were removed, each with the time of its removal, and delete old ones."""
    moment = yield from server_time(now)
    (records,) = yield Read([("HGETALL", shard.keys(RETIRED_KEY))])
    found: dict[str, tuple[float, Schedule]] = {}
    for name, record in records.items():
        try:
            found[name.decode()] = schedule_ops.parse_retired(name.decode(), record)
        except (ValueError, TypeError, LookupError):  # noqa: PERF203 - one damaged record harms no other
            continue
    newest = sorted(found, key=lambda name: found[name][0], reverse=True)[: schedule_ops.MAX_SCHEDULES]
    kept = {name: found[name] for name in newest if moment - found[name][0] <= RETIRED_SECONDS}
    if forgotten := [name for name in records if name.decode() not in kept]:
        yield Read([("HDEL", shard.keys(RETIRED_KEY), *forgotten)])
    return kept
