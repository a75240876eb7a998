"""Leases: fetching tasks, reporting their outcomes, renewing and giving back the leases of a worker, and waiting for work.

Functions that take ``shards`` send each call to the shard of the task; a fetch goes first to the shard whose turn is next
(`ShardScheduler`). Functions that take ``commands`` use one shard.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from django_fairque.engine.model.durations import MAX_DURATION_SECONDS, check_integer, is_integer, positive_us, to_us
from django_fairque.engine.model.errors import StaleLeaseError, TaskValidationError, short
from django_fairque.engine.model.ids import MAX_LISTED_USERS, Users, check_id, check_text, new_nonce
from django_fairque.engine.model.lanes import LANES
from django_fairque.engine.model.lease import Lease, LeaseKey, check_lease, leases_of_reply
from django_fairque.engine.model.outcome import NewcomerHead, Outcome, Settled, ShardHead
from django_fairque.engine.model.payload import pack
from django_fairque.engine.scripting.acts import Act, Values, record_act
from django_fairque.engine.scripting.commands import MAX_CALL_ITEMS, NEVER_MICROSECONDS, Commands
from django_fairque.engine.scripting.operations import BlockingCommand, Operation, Read, ScriptCall, parse_scores
from django_fairque.engine.sharding.shard_scheduler import NO_WINDOW, ShardScheduler, ShardSchedulers, Window
from django_fairque.engine.sharding.shards import Shards, indexes_by_shard
from django_fairque.engine.transport import cluster as clusters
from django_fairque.engine.transport.retry_policy import CLIENT_ERRORS, translate_error

if TYPE_CHECKING:
    from django_fairque.engine.model.lanes import Lane, LaneLimits
    from django_fairque.engine.transport.connection import Transport

WOKEN_ARGUMENT_INDEX = 6
"""The index of `Fetch.woken` among the arguments of a call that settles nothing."""
SHARD_WAIT_SECONDS = 0.1
"""The seconds of a wait for work on one of several shards, before the wait on the next shard."""
SETTLE_STATUSES = ("stale", "finished", "retried", "dead", "released", "canceled")


WORKER_COMMANDS = ("drain", "work", "stop")
"""Commands to a worker: take no more tasks, take tasks again, stop gracefully."""


@dataclass(frozen=True)
class WorkerCommand:
    """A command to a worker: its ``kind`` is one of `WORKER_COMMANDS`, and ``at`` is the server's Unix time when it was
    sent. The same ``kind`` with a later time is a new command.
    """

    kind: str
    at: float


@dataclass(frozen=True)
class Heartbeat:
    """The reply to `FairQueue.heartbeat`. ``renewed`` is the number of leases that were lengthened. ``revoked`` are
    leases whose tasks were canceled and should be stopped.

    ``command`` is the last command; every heartbeat returns it. Unless the server loses data, ``epoch`` stays the same,
    and ``token``, the last token that was handed out, never falls. ``server`` identifies the server process: it changes
    with a restart or a failover. ``at`` is the server's time; ``at`` and ``epoch`` are Unix times.
    """

    renewed: int
    revoked: list[LeaseKey]
    command: WorkerCommand | None = None
    epoch: float = 0.0
    token: int = 0
    at: float = 0.0
    server: str = ""


@dataclass(frozen=True)
class Fetch:
    """A worker's request: leases of ``lease`` seconds on tasks of these users, in up to ``limit`` turns."""

    limit: int = 0
    worker: str = ""
    users: Users = "*"
    steal: Users = ()
    lease: float | None = None
    woken: bool = False
    window: Window = NO_WINDOW
    """The positions up to which this shard may serve its users, if the queue has several shards."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """The batch size of each task name that the worker runs in batches. A turn of such a name gives up to a batch."""
    lane_limits: LaneLimits | None = None

    def __post_init__(self) -> None:
        for name in ("users", "steal"):
            users = getattr(self, name)
            if not isinstance(users, str) and isinstance(users, Collection) and list(users) == ["*"]:
                object.__setattr__(self, name, "*")

    def to_lua_args(self, default_lease: float, *, has_waited: bool = False) -> list[Any]:
        """Return the arguments from ``limit`` on, in the order of ``pop.lua`` and ``settle.lua``."""
        if not is_integer(self.limit, 0, MAX_CALL_ITEMS):
            raise TaskValidationError(f"a batch has 1 to {MAX_CALL_ITEMS} tasks, got {short(self.limit)}")
        if self.limit or self.worker:
            check_id(self.worker, "worker")
        length = to_us(default_lease) if self.lease is None else positive_us(self.lease, "lease")
        woken = 2 if has_waited else int(self.woken)
        lists = [*_user_list(self.users, "users"), *_user_list(self.steal if self.window.steals else (), "steal")]
        for number in self.lane_limits or ():
            check_integer(number, "a limit of lane_limits", 0)
        sizes: list[Any] = []
        if self.limit and (self.batches or self.lane_limits):
            sizes = [pack(part for pair in self.batches.items() for part in pair), *(self.lane_limits or ())]
        places = ["" if place is None else repr(place) for place in (self.window.begin, self.window.until)]
        places[1] = "+" * self.window.only_newcomers + places[1]
        return [self.limit, self.worker, length, woken, *places, *lists, *sizes]

    def shard_heads(self, text: bytes, count: int) -> tuple[ShardHead, ...]:
        """Return the parts of a reply that describe waiting users: one part for all users, or one for each list, in
        order. The reply has ``count`` leases.
        """
        if self.users == "*":
            return (_shard_head(text, count),)
        if self.limit and not text:
            return (ShardHead(None, 0.0),) * 2
        parts = (one.partition(b"/") for one in text.split())
        return tuple(_shard_head(place, float(given)) for place, _, given in parts)


def _shard_head(text: bytes, given: float) -> ShardHead:
    place = text.partition(b":")[0]
    return ShardHead(float(place) if place else None, given)


def _newcomer_head(text: bytes) -> NewcomerHead | None:
    """Return the part of the reply about all users (``place_in_ring`` in lua/lib/fetch.lua), or None for lists of users."""
    for one in text.split():
        if b":" in one:
            _, came, place, others, found, urgent_tag = one.partition(b"/")[0].split(b":")
            lanes = frozenset(lane for lane in LANES if lane[0].encode() in found)
            return NewcomerHead(
                float(came) if came else None, float(place), others == b"1", lanes, float(urgent_tag or 0)
            )
    return None


def _lease_us(lease: float | None, default: float) -> int:
    return to_us(default) if lease is None else positive_us(lease, "lease")


def _user_list(users: Users, what: str) -> list[Any]:
    if users == "*":
        return ["*"]
    if isinstance(users, str):
        raise TaskValidationError(
            f"{what} must be '*' or a sequence of user ids, got the string {short(users)}; did you mean [{short(users)}]?"
        )
    if not isinstance(users, Iterable):
        raise TaskValidationError(f"{what} must be '*' or a sequence of user ids, got {short(users)}")
    # Remove duplicates: a user that is in the list twice would have two turns.
    names = list(dict.fromkeys(check_id(user, f"a user id in {what}") for user in users))
    if any(isinstance(name, str) and name == "*" for name in names):
        raise TaskValidationError(f"{what} must be '*' alone or user ids, got '*' and {len(names) - 1} more")
    if len(names) > MAX_LISTED_USERS:
        raise TaskValidationError(
            f"{what} may list at most {MAX_LISTED_USERS} ids, got {len(names)}; use '*' for everyone"
        )
    return [len(names), *names]


def pop_batch(shards: Shards, orders: ShardSchedulers, fetch: Fetch, now: float | None) -> Operation[list[Lease]]:
    if len(shards.all) == 1:
        return (yield from pop_batch_from_shard(shards.home, fetch, now))
    return (yield from _settle_all(shards, orders, [], fetch, now)).leases


def settle(
    shards: Shards, orders: ShardSchedulers, outcomes: Sequence[Outcome], fetch: Fetch, now: float | None
) -> Operation[Settled]:
    if fetch.limit and not fetch.worker:
        workers = {outcome.lease.worker for outcome in outcomes}
        if len(workers) != 1:
            raise TaskValidationError(
                f"worker must say for whom tasks are fetched: the outcomes are those of {len(workers)} workers, not of one"
            )
        fetch = replace(fetch, worker=workers.pop())
    if len(shards) == 1:
        return (yield from settle_on_shard(shards.home, outcomes, fetch, now))
    return (yield from _settle_all(shards, orders, outcomes, fetch, now))


def _settle_all(
    shards: Shards, orders: ShardSchedulers, outcomes: Sequence[Outcome], fetch: Fetch, now: float | None
) -> Operation[Settled]:
    """Send the outcomes to their shards, then fetch from one shard after the other in the order of their turns."""
    fetch.to_lua_args(shards.config.lease_seconds)  # raises an error for a wrong value before anything is sent
    statuses: dict[int, str] = {}
    replies: list[Settled] = []
    for shard, indexes in indexes_by_shard(shards.of_lease(outcome.lease) for outcome in outcomes).items():
        reply = yield from settle_on_shard(shard, [outcomes[index] for index in indexes], replace(fetch, limit=0), now)
        statuses.update(zip(indexes, reply.statuses, strict=True))
        replies.append(reply)
    leases: list[Lease] = []
    serving, is_first = _list_serving_shards(shards, fetch), True
    order = orders.get_scheduler(fetch.users, fetch.steal, shards.get_shard_index)
    while len(leases) < fetch.limit and serving:
        ready = (yield from _look(shards, order, serving, is_first=is_first)) or serving
        is_first = False
        index = order.next(ready)
        share = max(1, (fetch.limit - len(leases)) // (1 + len(order.same_order_shards(index, ready))))
        others = [other for other in serving if other != index and (other in ready or order.has(other))]
        window = order.window(index, others)
        reply = yield from settle_on_shard(shards.all[index], [], replace(fetch, limit=share, window=window), now)
        order.record_reply(index, reply)
        replies.append(reply)
        leases += reply.leases
        has_more = bool(reply.leases) or order.has(index)
        serving = [other for other in serving if other != index or has_more]
    looks = [reply.look_at for reply in replies if reply.look_at is not None]
    return Settled(
        [statuses[index] for index in range(len(outcomes))],
        leases,
        max((reply.now for reply in replies), default=0.0),
        min(looks, default=None),
        has_messages=any(reply.has_messages for reply in replies),
    )


def _list_serving_shards(shards: Shards, fetch: Fetch) -> list[int]:
    if fetch.users == "*" or fetch.steal == "*":
        return [index for index, shard in enumerate(shards.all) if shards.is_present(shard)]
    numbers = {shards.get_shard_index(user) for user in (*fetch.users, *fetch.steal)}
    return sorted(index for index in numbers if shards.is_present(shards.all[index]))


def _look(shards: Shards, order: ShardScheduler, among: Sequence[int], *, is_first: bool) -> Operation[list[int]]:
    """Return the shards with a user who can be served. One request reads the first user of each lane."""
    keys = [shards.all[index].keys for index in among]
    reads = [("ZRANGE", of_shard(lane), 0, 0, "WITHSCORES") for of_shard in keys for lane in ("urgent", "ring", "bulk")]
    firsts = [parse_scores(found) for found in (yield Read(reads))]
    by_lane = {index: firsts[3 * at : 3 * at + 3] for at, index in enumerate(among)}
    for index, (urgent, first, _) in by_lane.items():
        order.record_first_score(index, first[0][1] if first else None, is_first=is_first)
        lanes = frozenset(itertools.compress(LANES, by_lane[index]))
        order.record_lanes(index, lanes, urgent[0][1] if urgent else 0.0)
    return order.choose_lanes(by_lane)


def settle_one(shards: Shards, outcome: Outcome, now: float | None) -> Operation[str]:
    """Report one outcome, and return its status. Raises `StaleLeaseError` if its lease is not the task's current one."""
    settled = yield from settle_on_shard(shards.of_lease(outcome.lease), [outcome], Fetch(), now)
    status = settled.statuses[0]
    if status == "stale":
        lease = outcome.lease
        raise StaleLeaseError(
            f"the lease of task {lease.task_id!r} (token {lease.token}, worker {lease.worker!r}) is not its "
            f"current one; nothing was changed"
        )
    return status


def renew(shards: Shards, leases: Sequence[Lease], lease: float | None, now: float | None) -> Operation[list[bool]]:
    length = _lease_us(lease, shards.config.lease_seconds)
    renewed = [False] * len(leases)
    parts = {shards.home: list(range(len(leases)))}
    if len(shards) > 1:
        parts = indexes_by_shard(map(shards.of_lease, leases))
    for shard, indexes in parts.items():
        for first in range(0, len(indexes), MAX_CALL_ITEMS):
            some = indexes[first : first + MAX_CALL_ITEMS]
            pairs = [value for index in some for value in (leases[index].task_id, leases[index].token)]
            reply = yield shard.call("renew", [length, len(some), *pairs], now)
            for index, code in zip(some, reply, strict=True):
                renewed[index] = code == 0x31
    return renewed


def take_over(
    shards: Shards, key: LeaseKey, worker: str, lease: float | None, now: float | None
) -> Operation[Lease | None]:
    length = _lease_us(lease, shards.config.lease_seconds)
    task_id, token = check_id(key.task_id, "task_id"), check_integer(key.token, "a token", 1)
    args = [task_id, token, check_id(worker, "worker"), length]
    for shard in shards:
        reply = yield shard.call("take_over", args, now, leases=worker)
        for taken in _leases(shard, reply, 1, worker):
            return taken
    return None


def wait_for_work(shards: Shards, timeout: float, lane: Lane = "bulk") -> Operation[bool]:
    """Wait for work of ``lane`` or of a higher lane, and return whether there is work. Several shards are waited for in
    turns of a tenth of a second.

    Workers do not use this for several shards: they wait on all shards at once.
    """
    pause, turns = timeout, 1
    if len(shards) > 1:
        pause = min(SHARD_WAIT_SECONDS, timeout / len(shards))
        turns = max(len(shards), int(timeout / SHARD_WAIT_SECONDS)) if pause > 0 else 1
    for turn in range(turns):
        if (yield wake(shards.all[turn % len(shards)], pause, lane)) is not None:
            return True
    return False


def heartbeat(
    shards: Shards,
    worker: str,
    info: Mapping[str, str],
    lease: float | None,
    ttl: float,
    requires_signatures: bool | None,
    now: float | None,
) -> Operation[Heartbeat]:
    check_id(worker, "worker")
    lengths = _lease_us(lease, shards.config.lease_seconds), positive_us(ttl, "ttl")
    signing = "" if requires_signatures is None else int(requires_signatures)
    args = [worker, *lengths, signing, len(info), *(text for pair in info.items() for text in pair)]
    beats: list[Heartbeat] = []
    for shard in shards:
        reply = yield shard.call(
            "heartbeat", args, now, reply=new_nonce(), worker=worker, leases=worker, revoked=worker
        )
        renewed, kind, sent_at, epoch, token, at, server, *revoked = reply
        command = WorkerCommand(kind.decode(), int(sent_at) / 1_000_000) if kind else None
        moments, keys = (int(epoch) / 1_000_000, int(at) / 1_000_000), _lease_keys(revoked)
        beats.append(Heartbeat(int(renewed), keys, command, moments[0], int(token), moments[1], server.decode()))
    return Heartbeat(
        sum(beat.renewed for beat in beats),
        [key for beat in beats for key in beat.revoked],
        max((beat.command for beat in beats if beat.command), key=lambda command: command.at, default=None),
        max(beat.epoch for beat in beats),
        sum(beat.token for beat in beats),
        max(beat.at for beat in beats),
        " ".join(beat.server for beat in beats),
    )


def _lease_keys(texts: Iterable[bytes]) -> list[LeaseKey]:
    pairs = (text.partition(b":") for text in texts)
    # A lease whose token is not a number belongs to a damaged record. No worker holds it.
    return [LeaseKey(task_id.decode(), int(token)) for token, _, task_id in pairs if token.isdigit()]


def set_worker_command(shards: Shards, worker: str, command: str, now: float | None) -> Operation[bool]:
    if command not in WORKER_COMMANDS:
        raise TaskValidationError(f"a command is one of {', '.join(WORKER_COMMANDS)}, got {short(command)}")
    check_id(worker, "worker")

    def send() -> Operation[bool]:
        is_known = False
        for shard in shards:
            is_known = bool((yield shard.call("set_worker_command", [command], now, worker=worker))) or is_known
        return is_known

    def read_command() -> Operation[Values]:
        (last,) = yield Read([("HGET", shards.home.keys.worker(worker), "command")])
        return {"command": last.decode() if last else None}

    return (yield from record_act(Act(shards.name, command, "worker", worker), send(), read_command))


def release_worker(
    shards: Shards,
    worker: str,
    crashed: Iterable[int],
    reason: str,
    forget: bool,
    now: float | None,
    started: Iterable[int] = (),
) -> Operation[int]:
    tokens, others = list(crashed), list(started)
    if (tokens or others) and len(shards) > 1:  # shards count tokens separately, so a token is not unique
        raise TaskValidationError(
            f"crashed: tokens are of one shard, and queue {shards.name!r} has {len(shards)}; "
            "call release_worker of the one that handed them out (queue.shards)"
        )
    args = [
        *(check_id(worker, "worker"), check_text(reason, "reason"), int(forget), shards.config.sweep_batch_size),
        *(len(tokens), *(check_integer(token, "crashed: a token", 1) for token in tokens)),
        *(len(others), *(check_integer(token, "started: a token", 1) for token in others)),
    ]
    return (yield from _give_back(shards, "release_worker", worker, args, now))


def reconcile_worker(
    shards: Shards, worker: str, held: Iterable[int], reason: str, now: float | None
) -> Operation[int]:
    tokens = list(held)
    if tokens and len(shards) > 1:
        raise TaskValidationError(
            f"held: tokens belong to one shard, and queue {shards.name!r} has {len(shards)}; "
            "call reconcile_worker of the shard that handed them out (queue.shards)"
        )
    args = [check_id(worker, "worker"), reason, shards.config.sweep_batch_size, len(tokens)]
    args += (check_integer(token, "held: a token", 1) for token in tokens)
    return (yield from _give_back(shards, "reconcile", worker, args, now))


def _give_back(shards: Shards, script: str, worker: str, args: Sequence[Any], now: float | None) -> Operation[int]:
    """Call this script on every shard until it has given back all leases; return their number."""
    total = 0
    for shard in shards:
        has_more = 1
        while has_more:
            names = {"worker": worker, "leases": worker, "revoked": worker, "reply": new_nonce()}
            count, has_more = map(int, (yield shard.call(script, args, now, **names)))
            total += count
    return total


def pop_batch_from_shard(commands: Commands, fetch: Fetch, now: float | None) -> Operation[list[Lease]]:
    args = fetch.to_lua_args(commands.config.lease_seconds)
    reply = yield commands.call("pop", args, now, reply=new_nonce(), leases=fetch.worker)
    return _leases(commands, reply, 5, fetch.worker)


def settle_on_shard(
    commands: Commands, outcomes: Sequence[Outcome], fetch: Fetch, now: float | None, *, has_waited: bool = False
) -> Operation[Settled]:
    """Settle and fetch on one shard.

    ``has_waited`` is true if the call was sent before work was ready (`PrefetchingWait`): the worker may have stopped
    since.
    """
    args: list[Any] = [len(outcomes)]
    for outcome in outcomes:
        args += outcome.to_lua_args(commands.config)
    args += fetch.to_lua_args(commands.config.lease_seconds, has_waited=has_waited)
    reply = yield commands.call("settle", args, now, reply=new_nonce(), leases=fetch.worker)
    moment, look_at, virtual_time, place, news, codes = reply[:6]
    look, leases = int(look_at), _leases(commands, reply, 6, fetch.worker)
    return Settled(
        [SETTLE_STATUSES[code - 0x30] for code in codes],
        leases,
        int(moment) / 1_000_000,
        None if look >= NEVER_MICROSECONDS else look / 1_000_000,
        float(virtual_time),
        fetch.shard_heads(place, len(leases)),
        news == b"1",
        _newcomer_head(place),
    )


def repeated_call(call: ScriptCall) -> ScriptCall:
    """Return the call that repeats a fetch which was sent before work was ready. If the server receives the first call
    after the repeated one, the first call does nothing.
    """
    args = list(call.args)
    args[WOKEN_ARGUMENT_INDEX] = 3
    return call._replace(args=args)


def _leases(commands: Commands, reply: Sequence[Any], first: int, worker: str) -> list[Lease]:
    return list(leases_of_reply(reply, first, worker, int(reply[0]) / 1_000_000, commands.keys.shard))


WAKE_KEYS: dict[Lane, tuple[str, ...]] = {
    "bulk": ("wake",),
    "normal": ("wake:urgent", "wake:normal"),
    "urgent": ("wake:urgent",),
}
"""For each lane, the keys of the markers that are set while there is work of this lane or of a higher lane."""


def wake(commands: Commands, timeout: float, lane: Lane = "bulk") -> BlockingCommand:
    """Return the blocking command that waits for the marker of work of ``lane`` or of a higher lane."""
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not (is_number and 0 < timeout <= MAX_DURATION_SECONDS):
        raise TaskValidationError(f"timeout must be a positive number of seconds, got {short(timeout)}")
    keys = map(commands.keys, WAKE_KEYS[lane])
    return BlockingCommand(("BZPOPMIN", *keys, f"{max(timeout, 0.001):.3f}"), timeout)


def check_leases(leases: Iterable[Lease]) -> list[Lease]:
    """Return the leases as a list; raise `TaskValidationError` for a single lease and for other values."""
    return [check_lease(lease) for lease in _check_list(leases, Lease, "leases")]


def check_outcomes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes as a list; raise `TaskValidationError` for other values, and for more outcomes than a call settles."""
    found = list(_check_list(outcomes, Outcome, "outcomes"))
    for outcome in found:
        if not isinstance(outcome, Outcome):
            raise TaskValidationError(f"expected an Outcome, as Outcome.finish(lease) makes one, got {short(outcome)}")
    if len(found) > MAX_CALL_ITEMS:
        raise TaskValidationError(f"at most {MAX_CALL_ITEMS} outcomes are settled in one call, got {len(found)}")
    return found


def _check_list(some: Iterable[Any], kind: type, what: str) -> Iterable[Any]:
    if isinstance(some, kind):
        raise TaskValidationError(f"expected a list of {what}, got a single one: put it into a list, [{what[:-1]}]")
    if isinstance(some, (str, bytes)) or not isinstance(some, Iterable):
        raise TaskValidationError(f"expected a list of {what}, got {short(some)}")
    return some


class BlockingQueue(Protocol):
    """The part of a synchronous queue of one shard that `PrefetchingWait` uses."""

    _shards: Shards
    _transport: Transport

    def _run(self, steps: Operation[bool], /) -> bool: ...


class PrefetchingWait:
    """A wait for work of at most ``timeout`` seconds. One thread sleeps in `end`; another may call `send_fetch` meanwhile.

    A worker with nothing to do sends its fetch after the blocking command, over the same connection, which saves the round
    trip after the wake-up. Unlike with a blocking pop, no task is lost by this: tasks that were handed out are leased, and the
    call carries a nonce, so that it can be repeated if its reply is lost. A worker that stopped while its fetch was blocked
    gets no tasks (lua/lib/fetch.lua).

    Args:
        queue: a queue of one shard.
        lane: the lowest lane for whose tasks it waits.
    """

    def __init__(self, queue: BlockingQueue, timeout: float, lane: Lane = "bulk") -> None:
        self._queue = queue
        self._timeout = timeout
        self._lane = lane
        self._commands = queue._shards.home  # noqa: SLF001 - the queue's own way of waiting
        self._transport = queue._transport  # noqa: SLF001
        self._pending_command = self._transport.open_blocking(wake(self._commands, timeout, lane))
        self._lock = threading.Lock()
        self._sent_fetch: tuple[Operation[Settled], ScriptCall] | None = None

    def send_fetch(self, fetch: Fetch) -> bool:
        """Send a fetch after the blocking command, once; `end` returns its reply. Return False if it can't be sent."""
        if self._pending_command is None:
            return False
        steps = settle_on_shard(self._commands, [], fetch, None, has_waited=True)
        call = next(steps)
        assert isinstance(call, ScriptCall)  # noqa: S101 - it settles nothing on other shards
        command = self._transport.first_command(call)
        with self._lock:
            is_sent = self._pending_command.add(command)
            if is_sent:
                self._sent_fetch = steps, call
        return is_sent

    def end(self) -> tuple[bool, Settled | None]:
        """Sleep until work comes, at most for the timeout; return whether it came, and the reply to the fetch.

        Raises:
            FairQueueError: as `FairQueue.wait_for_work` and `FairQueue.settle`.
        """
        if self._pending_command is None:
            return self._wait_anew(), None
        in_doubt = False
        try:
            woken, *replies = self._pending_command.replies()
        except CLIENT_ERRORS as error:
            woken, replies, in_doubt = error, [error], isinstance(error, clusters.CONNECTION_LOST_ERRORS)
        with self._lock:  # another thread may be in `send_fetch`: it has sent the fetch, but not stored it yet
            sent_fetch = self._sent_fetch
        is_refused = isinstance(woken, Exception)
        if sent_fetch is None:
            return self._wait_anew() if is_refused else woken is not None, None
        steps, call = sent_fetch
        reply = replies[0]
        if isinstance(reply, Exception):
            reply = self._transport.send(repeated_call(call), in_doubt=in_doubt)
        try:
            steps.send(reply)
        except StopIteration as stop:  # a fetch consists of one call
            settled: Settled = stop.value
        if is_refused and not in_doubt and not settled.leases:
            raise translate_error(woken) from woken
        return not is_refused and woken is not None, settled

    def _wait_anew(self) -> bool:
        """Wait over any connection, unless the worker has ended: then the wait would take a wake marker that other
        workers need.
        """
        if self._transport.is_reply_unwanted():
            return False
        return self._queue._run(wait_for_work(self._queue._shards, self._timeout, self._lane))  # noqa: SLF001 - as above
