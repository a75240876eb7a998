"""Scenarios of a queue on two shards: a message from one to the other arrives at least once and is applied once.

Each scenario ends as it would have without the failure: nobody needs to repeat the call that failed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.ids import compute_bucket
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.schedules.declarations import DeclaredSchedule
from tests.lab.proof.random_history import LEASE

if TYPE_CHECKING:
    from tests.lab.proof.scenario import Act, Scene

HERE, THERE = "fq:{default:0}:", "fq:{default:1}:"
POLICIES = ("wait", "cancel", "run")


def graph(scene: Scene) -> list[Any]:
    """A task here, and on the other shard one of each policy that waits for it; one more that waits for one of those."""
    here, there = scene.user_of(0), scene.user_of(1)
    waiting = [scene.task(name, there, depends_on=["f"], on_dependency_failure=name) for name in POLICIES]
    return [scene.task("f", here, max_retries=0), *waiting, scene.task("last", here, depends_on=["wait"])]


def carried(scene: Scene, times: int = 3) -> None:
    for _ in range(times):
        scene.queue.carry_messages(now=scene.now)


def carry(scene: Scene) -> Act:
    return lambda queue: queue.carry_messages(now=scene.now)


def a_graph_over_shards(scene: Scene) -> Act:
    scene.queue.get_stats()
    made = graph(scene)
    return lambda queue: queue.push_graph(made, "r1", now=scene.now)


def a_part_that_is_carried(scene: Scene) -> Act:
    scene.graph(*graph(scene))
    return carry(scene)


def a_question_that_is_carried(scene: Scene) -> Act:
    scene.graph(*graph(scene))
    carried(scene, 1)
    return carry(scene)


def a_question_about_what_is_over(scene: Scene) -> Act:
    scene.graph(*graph(scene))
    scene.end("f")
    carried(scene, 1)
    return carry(scene)


def an_end_that_is_to_be_sent(scene: Scene) -> Act:
    scene.graph(*graph(scene))
    carried(scene)
    (lease,) = scene.pop()
    return lambda queue: queue.finish(lease, 1, now=scene.now)


def an_end_that_is_sent(scene: Scene) -> Act:
    scene.graph(*graph(scene))
    carried(scene)
    scene.end("f")
    return carry(scene)


def a_failure_that_is_sent(scene: Scene) -> Act:
    scene.graph(*graph(scene))
    carried(scene)
    scene.end("f", how="failed")
    return carry(scene)


def a_dead_letter_that_is_given_up(scene: Scene) -> Act:
    a_failure_that_is_sent(scene)
    carried(scene)
    scene.queue.dlq.discard("f~1", now=scene.now)
    return carry(scene)


def a_dead_letter_with_dependents_that_is_forgotten(scene: Scene) -> Act:
    a_failure_that_is_sent(scene)
    carried(scene)
    scene.now += 40_000
    return lambda queue: queue.sweep(now=scene.now)


def another_graph_that_waits_for_the_same(scene: Scene) -> Act:
    scene.graph(*graph(scene))
    carried(scene)
    scene.order.append(("f", "more"))
    made = [scene.task("more", scene.user_of(1), depends_on=["f"])]
    return lambda queue: queue.push_graph(made, now=scene.now)


def an_id_that_lives_again_and_is_waited_for(scene: Scene) -> Act:
    a_failure_that_is_sent(scene)
    carried(scene)
    again = scene.task("f", scene.user_of(0))
    scene.order.clear()  # the failure has released tasks that run regardless of it
    return lambda queue: queue.push(again, now=scene.now)


def a_question_that_is_repeated(scene: Scene) -> Act:
    scene.graph(*graph(scene))
    carried(scene)
    scene.now += 61
    return lambda queue: queue.sweep(now=scene.now)


def a_question_that_nobody_asks_any_more(scene: Scene) -> Act:
    scene.graph(*graph(scene))
    carried(scene)
    scene.queue.cancel_many([*POLICIES], now=scene.now)
    scene.order.clear()
    scene.now += 61
    return lambda queue: queue.sweep(now=scene.now)


def mirrors_that_are_mended(scene: Scene) -> Act:
    scene.graph(*graph(scene))
    carried(scene)
    scene.redis.zrem(f"{THERE}mirrors", "f")
    scene.redis.zadd(f"{THERE}mirrors", {"nobody": 1})
    return lambda queue: queue.repair(now=scene.now)


def an_end_that_was_not_sent(scene: Scene) -> Act:
    scene.graph(*graph(scene))
    carried(scene)
    scene.end("f")
    scene.redis.delete(f"{HERE}outbox")
    scene.redis.sadd(f"{HERE}deps:remote:f", "1")
    return lambda queue: queue.repair(now=scene.now)


def newcomers_while_another_is_far_ahead(scene: Scene) -> Act:
    """The lead is more than a task, so a reply contains where the first of the others stands too."""
    names = [name for name in map("user-{}".format, range(1000)) if compute_bucket(name) % scene.config.shards == 0]
    ahead, *newcomers, last, next_to_last = names[:8]
    scene.push("a1", "a2", user=ahead)
    (lease,) = scene.pop()
    scene.queue.finish(lease, took=60, now=scene.now)
    for user in newcomers:
        scene.push(f"of-{user}", user=user)
        assert [lease.user_id for lease in scene.pop()] == [user]
    for user in (last, next_to_last):
        scene.push(f"of-{user}", user=user)
    return lambda queue: queue.shards[0].settle([], 1, worker="w1", lease=LEASE, now=scene.now)


def a_new_queue(scene: Scene) -> Act:
    """A process that looks for the first time writes down on how many shards the queue lies."""
    made = scene.task("f", scene.user_of(0))
    return lambda queue: FairQueue(queue.client, config=scene.config).push(made, now=scene.now)


def a_queue_that_is_used_without_shards(scene: Scene) -> Act:
    """A client that is configured for two shards gets an error and changes nothing."""
    scene.config = scene.config.model_copy(update={"shards": 1})
    scene.queue = FairQueue(scene.redis, config=scene.config)
    scene.push("f")

    def act(queue: FairQueue) -> None:
        with suppress(ConfigurationError):
            FairQueue(queue.client, config=scene.config.model_copy(update={"shards": 2})).get_stats()

    return act


def declared_schedules_of_several_shards(scene: Scene) -> Act:
    declared = {"a": DeclaredSchedule(scene.task(None, scene.user_of(1)), {"every": 30}, "1")}

    def act(queue: FairQueue) -> None:
        counting = queue.schedules.report_version("1 1", now=scene.now)
        queue.schedules.declare(declared, counting, now=scene.now)

    return act


def a_fetch_that_leaves_tasks_in_all_lanes(scene: Scene) -> Act:
    """The reply names the lanes in which tasks wait, so that the caller finds its next shard."""
    for lane in ("urgent", "normal", "bulk"):
        scene.push(f"1-{lane}", f"2-{lane}", user=scene.user_of(0), lane=lane)
    return lambda queue: queue.settle([], 1, worker="w", lease=LEASE, now=scene.now)
