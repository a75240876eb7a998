"""Scenarios of incidents and lost workers: they open, go on, close and are forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.statistics.incidents import change_incidents
from tests.lab.proof.random_history import LEASE
from tests.lab.proof.scenario import P

if TYPE_CHECKING:
    from django_fairque.engine.statistics.health import Alert
    from tests.lab.proof.scenario import Act, Scene

HOUR = 3600


def late_tasks(scene: Scene) -> list[Alert]:
    """Push tasks of 25 users that start late, and return their alerts."""
    for number in range(25):
        scene.push(f"late{number}", user=f"u{number}", sla=1)
    scene.now += 100
    scene.queue.sweep(now=scene.now)
    return scene.queue.take_alerts(100, now=scene.now)


def alerts_that_open_an_incident(scene: Scene) -> Act:
    alerts = late_tasks(scene)
    return lambda queue: queue.incidents.record(alerts, now=scene.now)


def alerts_that_go_on_for_minutes(scene: Scene) -> Act:
    alerts = late_tasks(scene)
    for _ in range(4):
        scene.queue.incidents.record(alerts, now=scene.now)
    scene.now += 700
    return lambda queue: queue.incidents.record(alerts, now=scene.now)


def an_incident_that_ends(scene: Scene) -> Act:
    scene.queue.incidents.record(late_tasks(scene), now=scene.now)
    scene.queue.purge(now=scene.now)
    scene.now += HOUR
    return lambda queue: queue.incidents.update(now=scene.now)


def an_incident_whose_record_is_gone(scene: Scene) -> Act:
    scene.redis.hset(P + "incidents:open", "sla:NORMAL", "gone")
    acts = [["close", "sla:NORMAL", "gone", 0, "", 0, 0]]
    return lambda queue: queue._run(change_incidents(queue._shards, acts, scene.now))


def incidents_that_are_too_old_or_too_many(scene: Scene) -> Act:
    alerts = late_tasks(scene)
    scene.redis.zadd(P + "incidents", {"old": 1, **{f"many{number}": scene.now * 1e6 for number in range(1000)}})
    scene.redis.hset(P + "incident:old", "name", "sla:LOW")
    return lambda queue: queue.incidents.record(alerts, now=scene.now)


def workers_that_are_lost(scene: Scene) -> Act:
    scene.redis.zadd(P + "workers:lost", {f"w{number}": scene.now * 1e6 for number in range(1001)})
    scene.queue.heartbeat("lost", {"name": "lost"}, lease=LEASE, ttl=1, now=scene.now)
    scene.now += 2 * HOUR
    return lambda queue: queue.sweep(now=scene.now)


def a_lost_worker_that_is_acknowledged(scene: Scene) -> Act:
    scene.queue.heartbeat("lost", {"name": "lost"}, lease=LEASE, ttl=1, now=scene.now)
    scene.now += 120
    scene.queue.sweep(now=scene.now)
    return lambda queue: queue.incidents.acknowledge("lost", now=scene.now)


def a_crash_of_a_name_that_gets_the_room_of_an_old_one(scene: Scene) -> Act:
    scene.push("crashed", name="n")
    (lease,) = scene.pop()
    scene.redis.hset(P + "stats:attempts:names", mapping={f"n{number}": 1 for number in range(100)})
    return lambda queue: queue.settle([Outcome.crash(lease, "its process was killed")], now=scene.now)


def a_crash_of_a_name_too_many(scene: Scene) -> Act:
    scene.push("crashed", name="n")
    (lease,) = scene.pop()
    hour = int(scene.now // HOUR)
    scene.redis.hset(P + "stats:attempts:names", mapping={f"n{number}": hour for number in range(100)})
    return lambda queue: queue.settle([Outcome.crash(lease, "its process was killed")], now=scene.now)


def an_end_of_a_late_task_among_too_many(scene: Scene) -> Act:
    scene.push("late", name="n", sla=1)
    scene.now += 100
    (lease,) = scene.pop()
    late: dict[Any, Any] = {f"capped:n:{len(str(number))}:{number}n": 1 for number in range(2_000)}
    scene.redis.hset(P + f"stats:late:{int(scene.now // HOUR)}", mapping=late)
    return lambda queue: queue.settle([Outcome.finish(lease)], now=scene.now)


def a_cancel_of_a_late_task(scene: Scene) -> Act:
    scene.push("late", name="n", sla=1)
    scene.now += 100
    return lambda queue: queue.cancel("late", now=scene.now)
