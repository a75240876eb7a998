"""Small systems in every order of events: what can be done in a state, done; what came of it, compared with the oracle.

A state is kept as the server's own dumps of its keys, so that any is brought back in one call. Two are the same when they
differ in nothing that decides what comes next: counts that only grow, and the numbers of leases, are left out.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection import task_lookup as lookup
from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.model.errors import StaleLeaseError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.task import Task
from django_fairque.engine.pushing import push as pushing
from django_fairque.engine.scripting.operations import ScriptCall
from django_fairque.engine.scripting.scripts import load
from tests.engine.oracle import ENDED, Known, Oracle
from tests.lab.proof.random_history import NOW, PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards

LEASE = 30.0
DELIVERIES = 2
TICK = 31.0
WORKERS = ("w1", "w2")

DUMP = """
local dumps = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  dumps[#dumps + 1] = key
  dumps[#dumps + 1] = redis.call('DUMP', key)
end
return dumps
"""
RESTORE = """
redis.call('FLUSHDB', 'SYNC')
for i = 1, #ARGV, 2 do redis.call('RESTORE', ARGV[i], 0, ARGV[i + 1]) end
"""
OUTLINE = """
local keys, parts = redis.call('KEYS', '*'), {}
table.sort(keys)
local function add(text) parts[#parts + 1] = #text .. ':' .. text end
local grows = { token = 1, done = 1, cost = 1, tag = 1, started = 1, finished = 1, failed = 1, busy = 1, waited = 1 }
grows.mean, grows.worker = 1, 1
for _, key in ipairs(keys) do
  local rest = string.match(key, '}:(.*)$')
  local kind = redis.call('TYPE', key).ok
  if string.find(rest, '^reply:') or string.find(rest, '^history:') or string.find(rest, '^stats') then
    rest = nil
  elseif kind == 'hash' then
    local flat, found = redis.call('HGETALL', key), {}
    for i = 1, #flat, 2 do
      if not (grows[flat[i]] and (string.find(rest, '^user:') or flat[i] ~= 'started')) then
        found[#found + 1] = flat[i] .. '=' .. flat[i + 1]
      end
    end
    table.sort(found)
    add(rest)
    for _, text in ipairs(found) do add(text) end
  elseif kind == 'zset' then
    add(rest)
    local with = rest ~= 'ring' and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') or redis.call('ZRANGE', key, 0, -1)
    for _, text in ipairs(with) do add(text) end
  elseif kind == 'list' then
    add(rest)
    for _, text in ipairs(redis.call('LRANGE', key, 0, -1)) do add(text) end
  elseif kind == 'set' then
    local found = redis.call('SMEMBERS', key)
    table.sort(found)
    add(rest)
    for _, text in ipairs(found) do add(text) end
  elseif string.find(rest, '^payload:') then
    add(rest)
    add(redis.call('GET', key)) -- with the head, if it has one
  end
end
local states = {}
for _, id in ipairs({ 't0', 't1', 't2' }) do
  local has_head = redis.call('GETRANGE', string.gsub(KEYS[1] .. id, ':task:', ':payload:'), 0, 0) == '\\31'
  states[#states + 1] = redis.call('HGET', KEYS[1] .. id, 'state') or has_head and 'queued' or ''
end
return { redis.sha1hex(table.concat(parts, ' ')), states }
"""


@dataclass
class State:
    """A state of the system: the server's, what the oracle thinks of it, and what the workers remember."""

    dumps: list[bytes]
    oracle: Oracle
    now: float = NOW
    leases: tuple[Lease, ...] = ()
    last: tuple[Any, ...] = ()
    reply: Any = None
    outline: bytes = b""
    path: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    """Tasks that died with their worker: the next call with maintenance informs the tasks that wait for them."""

    def catch_up(self) -> None:
        self.oracle.catch_up(self.now)
        self.tell()

    def tell(self) -> None:
        for name in self.untold:
            self.oracle.end(self.oracle.tasks[name], self.oracle.tasks[name].state, self.now)
        self.untold = ()


@dataclass(frozen=True)
class Move:
    """One event: what is sent, and what the oracle makes of the answer (None: a refusal of a stale lease)."""

    name: str
    steps: Callable[[], Operation[Any]]
    apply: Callable[[State, Any], None]


@dataclass
class Moves:
    """All that can happen in a state."""

    shards: Shards
    policy: str
    pushes: tuple[tuple[str, ...], ...] = (("t0",), ("t1", "t2"))
    users: dict[str, str] = field(default_factory=lambda: {"t0": "a", "t1": "b", "t2": "a"})

    def of(self, state: State) -> Iterator[Move]:
        yield from (self._push(state, names) for names in self.pushes if names[0] not in state.oracle.tasks)
        yield from (self._pop(state, worker) for worker in WORKERS)
        for lease in state.leases:
            yield from (self._settle(state, lease, how) for how in ("finish", "fail", "release"))
            yield self._renew(state, lease)
        for known in state.oracle.tasks.values():
            if known.state not in ENDED:
                yield self._cancel(state, known)
        yield from (self._crash(state, worker) for worker in WORKERS)
        yield Move("sweep", lambda: _sweep(self.shards, state.now), _catch_up)

    def _push(self, state: State, names: tuple[str, ...]) -> Move:
        made = [
            Task.create(
                self.users[name],
                3,
                name,
                task_id=name,
                max_retries=1,
                depends_on=["t1"] if name == "t2" else [],
                on_dependency_failure=self.policy if name == "t2" else "wait",  # type: ignore[arg-type]
            )
            for name in names
        ]

        def apply(after: State, results: Any) -> None:
            assert all(result.accepted for result in results)
            known = [
                Known(
                    task.task_id,
                    task.user_id,
                    budget=1,
                    policy=task.on_dependency_failure,
                    blockers=set(task.depends_on),
                )
                for task in made
            ]
            after.oracle.push(known, after.now)

        return Move(f"push {names}", lambda: pushing.push_graph(self.shards, made, "", state.now), apply)

    def _pop(self, state: State, worker: str) -> Move:
        def apply(after: State, leases: list[Lease]) -> None:
            after.catch_up()
            ready = [known for known in after.oracle.tasks.values() if known.state == "queued"]
            assert len(leases) == min(1, len(ready))
            for lease in leases:
                after.oracle.start(after.oracle.tasks[lease.task_id], lease.token, after.now)
                after.leases = (*after.leases, lease)[-4:]

        fetch = leasing.Fetch(1, worker, lease=LEASE)
        return Move(f"pop {worker}", lambda: leasing.pop_batch_from_shard(self.shards.home, fetch, state.now), apply)

    def _settle(self, state: State, lease: Lease, how: str) -> Move:
        outcome = {
            "finish": Outcome.finish(lease, took=0.01),
            "fail": Outcome.fail(lease, "x", delay=2.0**lease.retry_count, took=0.01),
            "release": Outcome.release(lease),
        }[how]

        def apply(after: State, status: Any) -> None:
            known = after.oracle.tasks[lease.task_id]
            assert (status is not None) == (known.state == "started" and known.token == lease.token)
            if status is not None:
                if how == "finish":
                    after.oracle.finish(known, after.now)
                elif how == "fail":
                    after.oracle.fail(known, after.now, for_good=False)
                else:
                    after.oracle.release(known)
            after.catch_up()
            after.leases = tuple(held for held in after.leases if held is not lease or status is None)

        return Move(f"{how} {lease.task_id}", lambda: leasing.settle_one(self.shards, outcome, state.now), apply)

    def _renew(self, state: State, lease: Lease) -> Move:
        def apply(after: State, renewed: list[bool]) -> None:
            known = after.oracle.tasks[lease.task_id]
            is_current = known.state == "started" and known.token == lease.token
            assert renewed == [is_current]
            if is_current:
                known.lease_end = after.now + LEASE

        return Move(f"renew {lease.task_id}", lambda: leasing.renew(self.shards, [lease], LEASE, state.now), apply)

    def _cancel(self, state: State, known: Known) -> Move:
        def apply(after: State, is_canceled: bool) -> None:
            assert is_canceled
            after.oracle.cancel(after.oracle.tasks[known.task_id], after.now)
            after.tell()

        name = known.task_id
        return Move(f"cancel {name}", lambda: lookup.cancel(self.shards, name, "", state.now), apply)

    def _crash(self, state: State, worker: str) -> Move:
        tokens = [lease.token for lease in state.leases if lease.worker == worker]

        def apply(after: State, released: int) -> None:
            held = [
                after.oracle.tasks[lease.task_id]
                for lease in after.leases
                if lease.worker == worker
                and (known := after.oracle.tasks[lease.task_id]).state == "started"
                and known.token == lease.token
            ]
            assert released == len(held)
            for known in held:
                # Two deliveries at most, so there is never a pause (`SUSPECT`).
                if known.is_suspect and known.deliveries >= DELIVERIES:
                    known.state, known.token = "failed", 0
                    after.untold += (known.task_id,)
                else:
                    known.state, known.token, known.is_suspect = "queued", 0, True

        return Move(
            f"crash {worker}",
            lambda: leasing.release_worker(self.shards, worker, tokens, "died", False, state.now),  # noqa: FBT003
            apply,
        )


def _sweep(shards: Shards, now: float) -> Operation[Any]:
    """Maintenance without the sample of the minute, which changes no task."""
    yield shards.home.call("sweep", [], now)


def _catch_up(after: State, result: Any) -> None:
    after.catch_up()


def command_of(request: Any) -> tuple[Any, ...]:
    """A script call as it is sent."""
    assert isinstance(request, ScriptCall)
    return ("FCALL", load(request.script).function, len(request.keys), *request.keys, *request.args)


def answered(steps: Operation[Any], reply: Any) -> Any:
    """Return the result that the steps compute from the reply to their only call; None if the lease is stale."""
    try:
        steps.send(reply)
    except StopIteration as stop:
        return stop.value
    except StaleLeaseError:
        return None
    raise AssertionError("more than one call")


def after(state: State, move: Move, dumps: list[bytes]) -> State:
    return State(
        dumps, copy.deepcopy(state.oracle), state.now, state.leases, path=(*state.path, move.name), untold=state.untold
    )


TASKS = f"{PREFIX}task:"
