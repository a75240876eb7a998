"""Scenarios of organizations: users that join and leave, tasks that are fetched, and records that are fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.lab.proof.random_history import LEASE
from tests.lab.proof.scenarios_of_damage import damaged

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from tests.lab.proof.scenario import Act, Scene

MARK = b"\xff"


def two_organizations(scene: Scene) -> None:
    """``a`` and ``b`` in one organization, ``c`` in another, ``d`` in none; each with work, some of it running."""
    for user, organization in (("a", "g"), ("b", "g"), ("c", "h")):
        scene.queue.user(user).set_organization(organization, now=scene.now)
    for user in "abcd":
        scene.push(f"{user}1", f"{user}2", user=user)
    scene.pop(2)


def a_share_that_is_given(scene: Scene) -> Act:
    two_organizations(scene)
    scene.queue.organization("h").set_share(0.3, now=scene.now)
    return lambda queue: queue.organization("g").set_share(0.2, now=scene.now)


def tasks_of_organizations_with_shares(scene: Scene) -> Act:
    two_organizations(scene)
    for name in ("g", "h"):
        scene.queue.organization(name).set_share(0.4, now=scene.now)
    leases = scene.queue.pop_batch(2, "w1", lease=LEASE, now=scene.now)
    for lease in leases:
        scene.queue.finish(lease, took=30, now=scene.now)
    return lambda queue: queue.pop_batch(3, "w1", lease=LEASE, now=scene.now)


def a_user_with_a_backlog_who_joins_an_organization(scene: Scene) -> Act:
    scene.push("one", "two")
    scene.pop()
    return lambda queue: queue.user("a").set_organization("g", now=scene.now)


def a_user_who_changes_organizations(scene: Scene) -> Act:
    two_organizations(scene)
    return lambda queue: queue.user("a").set_organization("h", now=scene.now)


def pauses_that_end(scene: Scene) -> Act:
    two_organizations(scene)
    for handle in (scene.queue, scene.queue.user("d"), scene.queue.user("a"), scene.queue.organization("h")):
        handle.pause(note="n", until=scene.now + 5, now=scene.now)
    return lambda queue: queue.sweep(now=scene.now + 6)


def the_last_user_who_leaves_an_organization(scene: Scene) -> Act:
    two_organizations(scene)
    return lambda queue: queue.user("c").set_organization(None, now=scene.now)


def a_organization_that_is_changed(scene: Scene) -> Act:
    two_organizations(scene)

    def act(queue: FairQueue) -> None:
        organization = queue.organization("g")
        organization.set_weight(3, now=scene.now)
        organization.set_max_running(1, now=scene.now)
        organization.set_max_running(None, now=scene.now)

    return act


def a_fetch_over_organizations(scene: Scene) -> Act:
    two_organizations(scene)
    return lambda queue: queue.pop_batch(5, "w2", lease=LEASE, now=scene.now)


def a_fetch_for_some_members(scene: Scene) -> Act:
    two_organizations(scene)
    return lambda queue: queue.pop_batch(5, "w2", ["a", "c"], ["b"], lease=LEASE, now=scene.now)


def a_push_that_lets_an_organization_be_served(scene: Scene) -> Act:
    scene.queue.user("a").set_organization("g", now=scene.now)
    made = scene.task("one")
    return lambda queue: queue.push(made, now=scene.now)


def the_last_task_of_an_organization(scene: Scene) -> Act:
    scene.queue.user("a").set_organization("g", now=scene.now)
    scene.push("one")
    return lambda queue: queue.cancel("one", now=scene.now)


def organizations_that_are_mended(scene: Scene) -> Act:
    two_organizations(scene)
    scene.queue.user("e").set_organization("lost", now=scene.now)
    scene.push("e1", user="e")
    scene.queue.user("f").set_organization("i", now=scene.now)
    scene.push("f1", user="f")
    scene.queue.user("p").set_organization("paused", now=scene.now)
    scene.push("p1", user="p")
    scene.queue.organization("paused").pause(now=scene.now)
    return damaged(
        scene,
        ("ZREM", "ring:g", "a"),
        ("ZADD", "ring:g", 1, "d", 1, "nobody"),
        ("ZADD", "ring", 1, "b", 1, MARK + b"nobody", 1, MARK + b"paused"),
        ("ZREM", "ring", MARK + b"i"),
        ("DEL", "group:lost"),
        ("HSET", "group:empty", "started", 3),
        ("HINCRBY", "group:g", "members", 1),
        ("HINCRBY", "group:h", "ready", -1),
        ("HINCRBY", "group:h", "run", 4),
        ("ZADD", "groups", 0, "nobody"),
        ("ZREM", "groups", "h"),
        ("ZREM", "grouped", "c"),
        ("ZADD", "grouped", 0, "d", 0, "stranger"),
        ("HINCRBY", "stats", "behind", 3),
        ("HINCRBY", "stats", "groups", -1),
    )
