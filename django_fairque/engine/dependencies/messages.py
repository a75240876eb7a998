"""Carrying messages from shard to shard. Each message is carried at least once; a second time changes nothing.

A shard writes a message to its outbox in the call that makes the message necessary, and keeps it until it has arrived.
There are three kinds: a part of a graph (``push:{shard}:{nonce}``), a question about the end of a task on the other shard
(``watch:{shard}:{task}``), and the answer when that task has ended (``tell:{shard}:{task}``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.inspection.task_lookup import server_time
from django_fairque.engine.model.payload import unpack
from django_fairque.engine.scripting.commands import MAX_CALL_ITEMS, Commands
from django_fairque.engine.scripting.operations import Operation, Read, parse_pairs

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards

UNKNOWN_TASK_SECONDS = 600.0
"""Seconds after which a task that its shard does not know counts as canceled: by then its push would have arrived."""
ENDED_STATES = ("finished", "failed", "canceled")


def deliver_messages(shards: Shards, limit: int, now: float | None) -> Operation[int]:
    """Carry at most ``limit`` messages of each shard; return how many arrived."""
    if len(shards) == 1:
        return 0
    arrived = 0
    for shard in shards:
        arrived += yield from _deliver_messages(shards, shard, min(limit, MAX_CALL_ITEMS), now)
    return arrived


def _deliver_messages(shards: Shards, source: Commands, limit: int, now: float | None) -> Operation[int]:
    (reply,) = yield Read([("HRANDFIELD", source.keys("outbox"), limit, "WITHVALUES")])
    done: list[tuple[bytes, bytes]] = []
    questions: dict[Commands, list[tuple[bytes, bytes, str]]] = {}
    answers: dict[Commands, list[tuple[bytes, bytes, str]]] = {}
    for field, body in parse_pairs(reply or []):
        kind, number, name = field.decode().split(":", 2)
        target = shards.all[int(number)]
        if not shards.is_present(target):
            continue  # the message stays here until that shard can be reached
        if kind == "push":
            yield target.call("push", unpack(body), now, reply=name)
            done.append((field, body))
        else:
            (questions if kind == "watch" else answers).setdefault(target, []).append((field, body, name))
    for target, ended in answers.items():
        yield from _report_ended(target, [(name, body.decode()) for _, body, name in ended], now)
        done += [(field, body) for field, body, _ in ended]
    for target, watched in questions.items():
        done += yield from _watch_tasks(target, source, watched, now)
    if not done:
        return 0
    yield source.call("ack_messages", [len(done), *(part for message in done for part in message)], now)
    return len(done)


def _report_ended(target: Commands, states: list[tuple[str, str]], now: float | None) -> Operation[None]:
    yield target.call("dependency_ended", [len(states), *(part for pair in states for part in pair)], now)


def _watch_tasks(
    target: Commands, source: Commands, watched: list[tuple[bytes, bytes, str]], now: float | None
) -> Operation[list[tuple[bytes, bytes]]]:
    """Ask a shard to report the ends of tasks, and report tasks that have ended already. Return the messages that are done.

    The message about a task that the shard does not know yet is kept, because the task may still arrive.
    """
    states = yield target.call("watch", [source.keys.shard, len(watched), *(name for _, _, name in watched)], now)
    moment = yield from server_time(now)
    done, ended = [], []
    for (field, body, name), state in zip(watched, states, strict=True):
        word = state.decode()
        if not word and moment - int(body) / 1_000_000 > UNKNOWN_TASK_SECONDS:
            word = "canceled"
        if word in ENDED_STATES:
            ended.append((name, word))
        if word:
            done.append((field, body))
    if ended:
        yield from _report_ended(source, ended, now)
    return done
