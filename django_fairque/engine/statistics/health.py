"""The health of a queue and the alerts of its tasks.

Health covers whether the server keeps tasks safe and whether workers run. An alert reports a task at risk of missing
its SLA, a missed SLA, a promotion, a dead letter or lost data. Each alert is delivered once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from django_fairque.engine.inspection import pages as listing
from django_fairque.engine.inspection.lost_workers import LostWorker, read_lost
from django_fairque.engine.inspection.worker_activity import UNRESPONSIVE_FIELD, decode_activity
from django_fairque.engine.model.durations import check_integer, number
from django_fairque.engine.model.ids import new_nonce
from django_fairque.engine.model.lanes import Lane, class_name, read_lane, read_priority
from django_fairque.engine.model.payload import unpack
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.scripting.commands import NEVER_MICROSECONDS, Commands
from django_fairque.engine.scripting.operations import Operation, Read, read_each, read_together
from django_fairque.engine.scripting.signing_keys import SIGNING_KEYS
from django_fairque.engine.sharding.shards import Shards, change_each, describe_shards
from django_fairque.engine.transport import server_checks as checks

AlertKind = Literal["at_risk", "violated", "promoted", "died", "given_back", "emptied", "went_back"]
MAX_ALERTS = 10_000
"""The largest number of alerts that are kept (lua/lib/alerts.lua)."""


@dataclass(frozen=True)
class Alert:
    """An alert about one task (``task_id``, ``name``, ``user_id``, ``priority``) of ``queue``. ``at`` and ``deadline``
    are Unix times.

    ``kind`` is one of these: ``at_risk`` (it must start by ``deadline`` to keep its SLA; if that is before ``at``, it
    is late), ``violated`` (it started after ``deadline``), ``promoted`` (it waited so long that it moved up from
    ``promoted_from`` to ``priority``), ``died`` (it is a dead letter, for ``reason``, and no worker has reported that:
    it expired, or its workers died too often), ``given_back`` (it has been given back ``times`` times after it had
    begun: its processes died, were killed or stopped; at each tenth time). Two kinds come from a worker and are about
    no task (``task_id`` is empty): ``emptied`` (the server has lost everything), ``went_back`` (the last changes are
    lost, among them this many ``leases``).
    """

    kind: AlertKind
    at: float
    queue: str
    task_id: str
    user_id: str
    name: str
    priority: Priority
    deadline: float | None = None
    promoted_from: Priority | None = None
    leases: int = 0
    reason: str = ""
    times: int = 0
    lane: Lane = "normal"
    """The lane of the task; an urgent or bulk task has the priority NORMAL."""

    def __str__(self) -> str:
        if self.kind == "emptied":
            return "the server has lost the queue's data: it came back empty; what was waiting or running is gone"
        if self.kind == "went_back":
            return (
                f"the server has lost its last changes, among them {self.leases:,} leases: tasks that were pushed lately may be "
                f"missing, and others run again"
            )
        task = f"task {self.task_id} ({self.name or 'no name'}, {class_name(self.lane, self.priority)}) of user {self.user_id!r}"
        return f"{task} {self._happened}"

    @property
    def _happened(self) -> str:
        if self.kind == "promoted" and self.promoted_from is not None:
            return f"waited so long that it was moved up from {self.promoted_from.name}"
        if self.kind == "died":
            return f"is a dead letter: {self.reason}"
        if self.kind == "given_back":
            return f"has been given back {self.times:,} times after it had begun, and starts again each time"
        left = (self.deadline or self.at) - self.at
        if self.kind == "violated":
            return f"started {-left:.1f} s later than promised"
        return (
            f"is {-left:.0f} s late and has not started" if left < 0 else f"has {left:.0f} s left to start as promised"
        )


def take_alerts(shards: Shards, limit: int, now: float | None) -> Operation[list[Alert]]:
    """Take the alerts of all shards. Alerts that were taken are returned even if some shards can't be reached; the
    alerts of these shards stay there for the next call.
    """
    check_integer(limit, "limit", 1, MAX_ALERTS)
    found: list[Alert] = []

    def take(shard: Commands) -> Operation[None]:
        if len(found) < limit:
            reply = yield shard.call("alerts", [limit - len(found)], now, reply=new_nonce())
            found.extend(_alert(shard.name, packed) for packed in reply)

    failures = yield from change_each(shards, shards.all, take)
    if failures and not found:
        raise next(iter(failures.values()))
    return sorted(found, key=lambda alert: alert.at)


def _alert(queue: str, packed: bytes) -> Alert:
    at, kind, task_id, user, name, priority, detail = (part.decode("utf-8", "replace") for part in unpack(packed))
    promoted, died, given_back = kind == "promoted", kind == "died", kind == "given_back"
    return Alert(
        cast("AlertKind", kind),  # the scripts write no other kind of alert
        int(at) / 1_000_000,
        *(queue, task_id, user, name, read_priority(priority)),
        deadline=None if promoted or died or given_back else float(detail) / 1_000_000,
        promoted_from=Priority(int(detail)) if promoted else None,
        reason=detail if died else "",
        times=int(detail) if given_back else 0,
        lane=read_lane(priority),
    )


MAX_NAMES_PER_REASON = 5
"""The largest number of unknown task names, and of processes with a blocked event loop, that are listed: each has a
separate reason.
"""
NO_WORKER_RUNS = "tasks are waiting and no worker is running; start one with manage.py fairque_worker"
"""The reason in a queue's health if tasks wait and no worker runs."""
NO_WORKER_IS_READY = "no worker is running, so tasks that are pushed will wait; start one with manage.py fairque_worker"
"""The reason in a queue's health if no worker runs and no task waits."""
LATELY_LOST_SECONDS = 600.0
"""Seconds for which a lost worker makes a queue degraded."""
LATE_MAINTENANCE_SECONDS = 60
"""Seconds by which maintenance may be late before the queue's health reports it."""


@dataclass(frozen=True)
class Health:
    """``status`` is good, degraded or down (no task is accepted), ``reasons`` are sentences with the reasons,
    ``server`` describes the server.
    """

    status: str
    reasons: list[str]
    server: dict[str, Any]
    missing_shards: tuple[int, ...] = ()
    """Numbers of the shards that can't be reached now: their tasks wait, and are not in the figures."""


def attendance_reads(commands: Commands, now: int) -> list[tuple[Any, ...]]:
    """Return the reads for `attendance`: the number of workers that are alive at ``now`` (µs), then for each kind the
    number of due entries that wait for a worker's maintenance.

    Dead workers are excluded here, because no worker removes their entries when all have died.
    """
    keys = commands.keys
    due = (keys.state("scheduled"), keys.state("started"), keys("throttled"))
    return [("ZCOUNT", keys("workers"), now, "+inf"), *(("ZCOUNT", key, "-inf", now) for key in due)]


def attendance(replies: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return the number of live workers and the number of due entries, from the replies to `attendance_reads` of each
    shard.
    """
    return max(int(reply[0]) for reply in replies), sum(int(number) for reply in replies for number in reply[1:])


def _other_nodes(shards: Sequence[Commands]) -> Operation[list[dict[str, Any]]]:
    """Read INFO of each other node of a cluster that has a shard. Commands without a key go to the node of their read's
    keys.
    """
    found: dict[str, dict[str, Any]] = {}
    for shard in shards[1:]:
        info, _ = yield Read([("INFO", *checks.CHECKED_INFO_SECTIONS), ("EXISTS", shard.keys("stats"))])
        found[str(info.get("run_id"))] = info
    return list(found.values())


def unknown_names(workers: Sequence[listing.WorkerRecord]) -> list[str]:
    """Return a sentence for each name of a task that workers can't run."""
    counts, sentences = Counter(name for worker in workers for name in worker.unknown_tasks), []
    for name, count in sorted(counts.items()):
        some = f"{count:,} of {len(workers):,} workers {'does' if count == 1 else 'do'} not know"
        who = "no worker knows" if count == len(workers) else some
        sentences.append(f"{who} a task named {name}: deploy its code, or import its module where the workers start")
    return _shorten(
        sentences, "workers do not know 1 more name of tasks", "workers do not know {:,} more names of tasks"
    )


def _shorten(sentences: Sequence[str], one_more: str, several_more: str) -> list[str]:
    """Return the first `MAX_NAMES_PER_REASON` sentences and, if some are left out, a sentence with the number of
    left-out sentences.
    """
    left = len(sentences) - MAX_NAMES_PER_REASON
    more = [(one_more if left == 1 else several_more).format(left)] if left > 0 else []
    return [*sentences[:MAX_NAMES_PER_REASON], *more]


def missing_keys(used: Iterable[bytes], workers: Sequence[listing.WorkerRecord]) -> list[str]:
    """Return a sentence for each key that producers sign with and that some workers do not have."""
    sentences, checking = [], [worker for worker in workers if worker.keys]
    for key in sorted(fingerprint.decode(errors="replace") for fingerprint in used):
        without = [worker.worker for worker in checking if key not in worker.keys]
        if without:
            names = ", ".join(sorted(without)[:MAX_NAMES_PER_REASON])
            sentences.append(
                f"{len(without):,} of {len(checking):,} workers ({names}) can't check tasks that are signed with the key {key}, "
                "and give them back: give them the SECRET_KEY of the producers, or, if no producer has that key any more, "
                "run 'manage.py fairque_keys replace'"
            )
    return sentences


def blocked_loops(workers: Sequence[listing.WorkerRecord]) -> list[str]:
    """Return a sentence for each process whose event loop is blocked by a task."""
    sentences = [
        f"the event loop of process {worker.worker} is blocked by {worker.info['blocked_by']}; its log has the stack"
        for worker in workers
        if worker.info.get("blocked_by")
    ]
    return _shorten(
        sentences,
        "the event loop of 1 more process is blocked",
        "the event loops of {:,} more processes are blocked",
    )


def unresponsive(workers: Sequence[listing.WorkerRecord]) -> list[str]:
    """Return a sentence for each process that does not respond to its supervisor."""
    sentences = [
        f"process {worker.worker} does not respond{_describe_lines(worker)}; the worker's log has the tasks"
        for worker in workers
        if worker.info.get(UNRESPONSIVE_FIELD)
    ]
    return _shorten(sentences, "1 more process does not respond", "{:,} more processes do not respond")


def _describe_lines(worker: listing.WorkerRecord) -> str:
    """Describe the lines of code of the worker's longest-running tasks at the last sample, each line once. The cause
    may be a task that began later, so the text mentions that there are other tasks.
    """
    report = decode_activity(worker)
    if report is None or not report.lines:
        return ""
    lines = ", ".join(list(dict.fromkeys(report.lines.values()))[:MAX_NAMES_PER_REASON])
    others = number(worker.info.get("running", "").encode()) - len(report.lines)
    return f", its tasks were at {lines}" + (f" and {others:,.0f} at an unknown line" if others > 0 else "")


def lately_lost(workers: Sequence[LostWorker], now: int) -> list[str]:
    """Return a sentence for each worker that was lost in the last minutes before ``now`` (µs)."""
    sentences = [str(worker) for worker in workers if now / 1_000_000 - worker.lost_at < LATELY_LOST_SECONDS]
    return _shorten(sentences, "1 more worker is lost", "{:,} more workers are lost")


def health(queue: Shards) -> Operation[Health]:
    """Return whether the server keeps tasks safe and work is being done. ``queue`` are the shards.

    Raises `RedisConnectionError` if the server can't be reached. If only some of several shards can't be reached, or
    only some of several nodes are full, the queue is degraded, because the users of the other shards are served.
    """
    shards = tuple(queue)
    reads = [
        [
            *(("ZCARD", shard.keys("ring")), ("ZCARD", shard.keys.state("failed"))),
            ("HMGET", shard.keys("stats"), "look", "behind"),
        ]
        for shard in shards
    ]
    (info, clock), *found_in = yield from read_each([[("INFO", *checks.CHECKED_INFO_SECTIONS), ("TIME",)], *reads])
    now = int(clock[0]) * 1_000_000 + int(clock[1])
    parts: list[Operation[Any]] = [
        read_each([attendance_reads(shard, now) for shard in shards]),
        listing.workers_of_shard(shards[0], now),
        read_lost(shards[0], now / 1_000_000),
        read_each([[("SMEMBERS", shard.keys(SIGNING_KEYS)) for shard in shards]]),
    ]
    attended, records, (lost, *_), (keys,) = yield from read_together(parts)
    workers, due = attendance(attended)
    dead = sum(int(dead) for _, dead, _ in found_in)
    look = min(float(look or NEVER_MICROSECONDS) for _, _, (look, _) in found_in)
    users_ready = sum(int(ring) + int(number(behind)) for ring, _, (_, behind) in found_in)
    infos = [info, *((yield from _other_nodes(shards)) if checks.server_mode(info) == "cluster" else [])]
    of_nodes = [list(checks.check_server_info(info)) for info in infos]
    found = dict.fromkeys(finding for one in of_nodes for finding in one)
    is_down = all(any(kind in checks.BLOCKING_FINDINGS for kind, _ in findings) for findings in of_nodes)
    refusals = [text for kind, text in found if kind in checks.BLOCKING_FINDINGS]
    reasons = [text for kind, text in found if kind not in checks.BLOCKING_FINDINGS]
    if queue.missing:
        reasons.insert(
            0,
            f"{describe_shards(queue.missing)} of {len(queue)} can't be reached: "
            "what their users push is refused, what lies there waits",
        )
    if not workers:
        reasons.append(NO_WORKER_RUNS if users_ready or due else NO_WORKER_IS_READY)
    late = (now - look) / 1_000_000
    if workers and late > LATE_MAINTENANCE_SECONDS + shards[0].config.sweep_interval:
        reasons.append(f"maintenance is {late:,.0f} s late: no worker has swept the queue")
    if dead:
        wait = "letter waits for someone to look at it" if dead == 1 else "letters wait for someone to look at them"
        reasons.append(f"{dead:,} dead {wait}")
    name, version = checks.name_and_version(info)
    server = {
        "name": name,
        "version": version,
        "mode": checks.server_mode(info),
        "role": "replica" if info.get("role") == "slave" else "primary",
        "replicas": int(info.get("connected_slaves") or 0),
        "memory_used": info.get("used_memory"),
        "memory_limit": info.get("maxmemory") or None,
        "eviction": info.get("maxmemory_policy"),
        "append_only_file": bool(info.get("aof_enabled")),
    }
    reasons = [
        *refusals,
        *unknown_names(records),
        *blocked_loops(records),
        *unresponsive(records),
        *lately_lost(lost, now),
        *reasons,
    ]
    reasons += missing_keys({key for reply in keys for key in reply}, records)
    status = "down" if is_down else "degraded" if reasons else "good"
    return Health(status, reasons, server, queue.missing)
