"""Scenarios of acts on many tasks, of their undo, and of attempts that are counted by release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.acts.acts import STOP_AFTER, check_act, start
from django_fairque.engine.acts.moves import Mover
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.commands import NEVER_MICROSECONDS
from tests.lab.proof.scenario import P

if TYPE_CHECKING:
    from django_fairque.engine.acts.acts import TaskAct
    from django_fairque.engine.dead_letters.letters import Filters
    from django_fairque.engine.model.records import ActKind
    from tests.lab.proof.scenario import Act, Scene

DAY = 86_400


def bury(scene: Scene) -> None:
    """Make three dead letters."""
    scene.push("dead1", "dead2", "dead3")
    for lease in scene.pop(3):
        scene.queue.fail(lease, "boom", retry=False, now=scene.now)


def prepared(scene: Scene, kind: ActKind) -> TaskAct:
    filters: Filters = {"user_id": "a"} if kind == "cancel" else {}
    options: dict[str, Any] = {"pace": 10.0, "trial": False, "note": "", "lane": "normal", "actor": "", "to": ""}
    return check_act(
        scene.queue.name, kind, **options, stop_after=STOP_AFTER, state=None, priority=None, filters=filters
    )


def begin(scene: Scene, kind: ActKind) -> TaskAct:
    """Start an act a second after its tasks were pushed. Its next step can change 20 tasks."""
    scene.now += 1
    act = scene.queue._run(start(scene.queue._shards, prepared(scene, kind), scene.now))
    scene.now += 2
    return act


def advance(scene: Scene, steps: int) -> None:
    for _ in range(steps):
        scene.queue.acts.advance(now=scene.now)
        scene.now += 2


def an_act_that_starts(scene: Scene) -> Act:
    bury(scene)
    scene.redis.zadd(P + "acts", {f"old{number}": (scene.now - 2 * DAY) * 1e6 for number in range(2)})
    scene.redis.hset(P + "act:old0", "state", "done")
    act = prepared(scene, "retry")
    return lambda queue: queue._run(start(queue._shards, act, scene.now))


def an_act_beside_a_hundred_others(scene: Scene) -> Act:
    bury(scene)
    scene.redis.zadd(P + "acts", {f"ended{number}": (scene.now - 60) * 1e6 for number in range(100)})
    act = prepared(scene, "discard")
    return lambda queue: queue._run(start(queue._shards, act, scene.now))


def an_act_without_a_record(scene: Scene) -> Act:
    scene.redis.zadd(P + "acts", {"gone": NEVER_MICROSECONDS})
    return lambda queue: queue.acts.advance(now=scene.now)


def a_step_that_retries(scene: Scene) -> Act:
    bury(scene)
    begin(scene, "retry")
    return lambda queue: queue.acts.advance(now=scene.now)


def a_step_that_discards(scene: Scene) -> Act:
    bury(scene)
    begin(scene, "discard")
    return lambda queue: queue.acts.advance(now=scene.now)


def a_step_that_cancels(scene: Scene) -> Act:
    scene.push("waiting1", "waiting2")
    scene.push("later", delay=60)
    begin(scene, "cancel")
    return lambda queue: queue.acts.advance(now=scene.now)


def outcomes_of_retried_tasks(scene: Scene) -> Act:
    bury(scene)
    begin(scene, "retry")
    advance(scene, 1)
    leases = scene.pop(2)
    scene.queue.settle([Outcome.finish(leases[0]), Outcome.fail(leases[1], "boom", delay=None)], now=scene.now)
    return lambda queue: queue.acts.advance(now=scene.now)


def an_act_that_ends(scene: Scene) -> Act:
    bury(scene)
    begin(scene, "discard")
    advance(scene, 2)
    return lambda queue: queue.acts.advance(now=scene.now)


def an_undo_of_a_retry(scene: Scene) -> Act:
    bury(scene)
    act = begin(scene, "retry")
    advance(scene, 2)
    scene.queue.acts.undo(act.id, now=scene.now)
    scene.now += 2
    return lambda queue: queue.acts.advance(now=scene.now)


def an_undo_of_a_discard(scene: Scene) -> Act:
    bury(scene)
    act = begin(scene, "discard")
    advance(scene, 2)
    scene.queue.acts.undo(act.id, now=scene.now)
    scene.now += 2
    return lambda queue: queue.acts.advance(now=scene.now)


def an_undo_of_a_cancel(scene: Scene) -> Act:
    scene.queue.user("a").set_max_backlog_bytes(100_000, now=scene.now)
    scene.push("waiting1", "waiting2")
    scene.push("later", delay=60)
    act = begin(scene, "cancel")
    advance(scene, 3)
    scene.queue.acts.undo(act.id, now=scene.now)
    scene.now += 2
    return lambda queue: queue.acts.advance(now=scene.now)


def begin_move(scene: Scene) -> Mover:
    """Start a move to a queue whose calls are never interrupted. A step of it can change 20 tasks."""
    scene.now += 1
    options: dict[str, Any] = {"pace": 10.0, "trial": False, "note": "", "lane": "normal", "actor": "", "to": "other"}
    act = check_act(scene.queue.name, "move", **options, stop_after=STOP_AFTER, state=None, priority=None, filters={})
    scene.queue._run(start(scene.queue._shards, act, scene.now))
    scene.now += 2
    other = FairQueue(scene.redis, "other", scene.config)
    return Mover(lambda name: other, lambda task, prefix, queue: True)


def a_step_that_moves(scene: Scene) -> Act:
    bury(scene)
    mover = begin_move(scene)
    return lambda queue: queue.acts.advance(mover, now=scene.now)


def a_delivery_of_moved_tasks(scene: Scene) -> Act:
    bury(scene)
    mover = begin_move(scene)
    scene.queue.acts.advance(mover, now=scene.now)
    return lambda queue: queue.acts.advance(mover, now=scene.now)


def an_undo_of_a_move(scene: Scene) -> Act:
    bury(scene)
    mover = begin_move(scene)
    for _ in range(2):
        scene.queue.acts.advance(mover, now=scene.now)
        scene.now += 2
    scene.queue.acts.undo(scene.queue.acts.list()[0].id, now=scene.now)
    scene.now += 2
    return lambda queue: queue.acts.advance(mover, now=scene.now)


def tasks_that_only_wait_are_canceled(scene: Scene) -> Act:
    scene.push("waiting1", "waiting2", "started")
    scene.pop(1)
    return lambda queue: queue.acts.withdraw(["waiting1", "waiting2", "started"], now=scene.now)


def a_cancel_with_dependents(scene: Scene) -> Act:
    scene.graph(scene.task("first"), scene.task("second", depends_on=["first"], expires=900))
    begin(scene, "cancel")
    advance(scene, 1)  # the first step looks for scheduled tasks
    return lambda queue: queue.acts.advance(now=scene.now)


def an_undo_with_dependents(scene: Scene) -> Act:
    parents = [scene.task(name) for name in ("first", "other")]
    policy: dict[str, Any] = {"on_dependency_failure": "cancel", "expires": 900}
    scene.graph(*parents, scene.task("second", user="b", depends_on=["first", "other"], **policy))
    act = begin(scene, "cancel")
    advance(scene, 3)
    scene.queue.acts.undo(act.id, now=scene.now)
    scene.now += 2
    return lambda queue: queue.acts.advance(now=scene.now)


def a_pause_that_is_undone(scene: Scene) -> Act:
    scene.queue.pause(note="a", now=scene.now)
    expected = {"paused": 1, "pause_note": "a"}
    return lambda queue: queue.change_if("resume", {"paused": "", "pause_note": ""}, expected, now=scene.now)


def ends_of_attempts_of_a_release(scene: Scene) -> Act:
    scene.config.set_release("v2")
    scene.push("a1", "a2", name="n")
    leases = scene.pop(2)
    hour = int(scene.now // 3600)
    scene.redis.hset(P + "stats:attempts:names", mapping={f"n{number}": hour - 30 for number in range(100)})
    outcomes = [Outcome.finish(leases[0], took=1.0), Outcome.crash(leases[1], "its process was killed")]
    return lambda queue: queue.settle(outcomes, now=scene.now)
