"""Scenarios of a queue on one shard: what users, workers and maintenance ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.task_logs import LogLine
from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.model.ids import new_nonce
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import EventCount
from django_fairque.engine.model.task import Task
from django_fairque.engine.pushing.push import push_args
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.schedules.declarations import DeclaredSchedule
from tests.lab.proof.blocked_fetch import fetched_ahead
from tests.lab.proof.random_history import LEASE
from tests.lab.proof.scenario import P

if TYPE_CHECKING:
    from django_fairque.engine.schedules.declarations import VersionAction
    from tests.lab.proof.scenario import Act, Scene


def tasks_of_every_kind(scene: Scene) -> Act:
    now = scene.now
    made = [
        *(scene.task("critical", priority=6), scene.task("normal"), scene.task("later", execute_after=now + 20)),
        *(scene.task("short", expires_at=now + 60), scene.task("once", unique_key="x", unique_for=10)),
    ]
    return lambda queue: queue.push_batch(made, now=now)


def a_task_of_a_user_with_a_promise(scene: Scene) -> Act:
    scene.queue.user("a").set_sla(5, now=scene.now)
    made = scene.task("promised")
    return lambda queue: queue.push(made, now=scene.now)


def the_last_of_several_payloads(scene: Scene) -> Act:
    scene.push("first", unique_key="x", debounce=10)
    again = scene.task("again", unique_key="x", debounce=10)
    return lambda queue: queue.push(again, now=scene.now)


def the_last_of_several_moments(scene: Scene) -> Act:
    scene.push("first", unique_key="x", debounce=10, expires_at=scene.now + 50)
    again = scene.task("again", unique_key="x", debounce=10, expires_at=scene.now + 60)
    return lambda queue: queue.push(again, now=scene.now)


def tasks_of_two_new_users(scene: Scene) -> Act:
    made = [scene.task("one", "new"), scene.task("two", "newer")]
    return lambda queue: queue.push_batch(made, now=scene.now)


def critical_ones_that_come_back_one_by_one(scene: Scene) -> Act:
    for name in ("f", "g", "h"):
        scene.push(name, priority=6)
    first, second = scene.pop(2)
    scene.queue.release(first, now=scene.now)
    return lambda queue: queue.release(second, now=scene.now)


def ids_that_live_again(scene: Scene) -> Act:
    scene.graph(scene.task("f"), scene.task("g"), scene.task("waits", "b", depends_on=["g"]), run="r1")
    leases = {lease.task_id: lease for lease in scene.pop(2)}
    scene.queue.finish(leases["f"], 1, now=scene.now)
    scene.queue.fail(leases["g"], "x", retry=False, now=scene.now)
    made = [scene.task("f"), scene.task("g")]
    return lambda queue: queue.push_batch(made, now=scene.now)


def an_id_whose_dependents_are_being_notified(scene: Scene) -> Act:
    waiting = [scene.task(f"w{n}", "b", depends_on=["f"]) for n in range(14)]
    scene.graph(scene.task("f"), *waiting)
    scene.end("f")
    again = scene.task("f")
    return lambda queue: queue.push(again, now=scene.now)


def more_dependents_than_are_notified_in_one_call(scene: Scene) -> Act:
    scene.graph(scene.task("f"), *(scene.task(f"w{n}", "b", depends_on=["f"]) for n in range(7)))
    (lease,) = scene.pop()
    return lambda queue: queue.settle([Outcome.finish(lease)], 1, worker="w1", lease=LEASE, now=scene.now)


def one_dependent_more_than_a_slice(scene: Scene) -> Act:
    scene.graph(
        scene.task("f"), *(scene.task(f"w{n}", "b", depends_on=["f"]) for n in range(scene.config.sweep_batch_size))
    )
    another = scene.task("another", "c", depends_on=["f"])
    return lambda queue: queue.push(another, now=scene.now)


def a_retry_with_a_limit(scene: Scene) -> Act:
    scene.push("one")
    (lease,) = scene.pop()
    outcome = replace(Outcome.retry(lease, "x", delay=5), limits=":3:")
    return lambda queue: queue.settle([outcome], now=scene.now)


def a_fetch_that_has_waited(scene: Scene) -> Act:
    scene.queue.heartbeat("w1", {}, lease=LEASE, now=scene.now)
    scene.push("one", "two", "three")
    return lambda queue: fetched_ahead(queue, "w1", scene.now, LEASE)


def a_fetch_that_has_waited_in_vain(scene: Scene) -> Act:
    scene.push("one")
    return lambda queue: fetched_ahead(queue, "gone", scene.now, LEASE)


def a_fetch_that_has_waited_and_is_sent_again_in_vain(scene: Scene) -> Act:
    scene.queue.heartbeat("w1", {}, lease=LEASE, now=scene.now)
    return lambda queue: fetched_ahead(queue, "w1", scene.now, LEASE, again=True)


def a_graph_with_all_that_may_become_of_it(scene: Scene) -> Act:
    scene.push("dead", "gone", max_retries=0)
    scene.end("dead", "gone", how="failed")
    scene.queue.dlq.discard("gone~1", now=scene.now)
    scene.push("live")
    made = [
        *(scene.task("g1"), scene.task("g2", depends_on=["g1", "live"])),
        scene.task("g3", depends_on=["dead"], on_dependency_failure="cancel"),
        scene.task("g4", depends_on=["gone", "g1"], on_dependency_failure="run"),
    ]
    scene.order.clear()
    return lambda queue: queue.push_graph(made, "r1", now=scene.now)


def a_circle_through_an_id_that_lives_again(scene: Scene) -> Act:
    scene.push("f", max_retries=0)
    scene.end("f", how="failed")
    scene.graph(scene.task("w", "b", depends_on=["f"]))
    made = [scene.task("f", depends_on=["w"])]
    scene.order.clear()
    return lambda queue: queue.push_graph(made, now=scene.now)


def what_a_database_asks_for(scene: Scene) -> Act:
    scene.push("known")
    made, counts = [scene.task("new"), scene.task("known")], {"e": EventCount(2, 1, 1, "bad")}
    return lambda queue: queue.deliver(made, counts, from_outbox=True, now=scene.now)


def rows_that_are_gone(scene: Scene) -> Act:
    scene.queue.deliver([scene.task("one")], {}, from_outbox=True, now=scene.now)
    return lambda queue: queue.forget_delivered(["one"], now=scene.now)


def a_fetch_of_late_and_expired_tasks(scene: Scene) -> Act:
    scene.push("critical", priority=6)
    scene.push("late", sla=1)
    scene.push("expired", user="b", expires_at=scene.now + 1)
    scene.queue.user("b").set_rate("1/10s", now=scene.now)
    scene.push("held", user="b")
    scene.now += 3
    return lambda queue: queue.pop_batch(4, "w1", lease=LEASE, now=scene.now)


def a_fetch_for_some_users(scene: Scene) -> Act:
    scene.push("one", "two")
    scene.push("other", user="b")
    return lambda queue: queue.pop_batch(3, "w1", ["a"], ["b"], lease=LEASE, now=scene.now)


def a_fetch_whose_reply_was_lost(scene: Scene) -> Act:
    scene.push("one")
    operation = leasing.pop_batch_from_shard(scene.queue._shards.home, leasing.Fetch(2, "w1", lease=LEASE), scene.now)
    request = next(operation)
    scene.queue._transport.send(request)
    return lambda queue: queue._transport.send(request)


def outcomes_of_every_kind(scene: Scene) -> Act:
    names = ["finish", "result", "fail", "die", "retry", "discard", "release", "crash", "poison"]
    scene.push(*names[:5])
    scene.push(*names[5:], priority=6)
    leases = {lease.task_id: lease for lease in scene.pop(9)}
    outcomes = [
        *(Outcome.finish(leases["finish"]), Outcome.finish(leases["result"], 1)),
        *(Outcome.fail(leases["fail"], "x", delay=5), Outcome.fail(leases["die"], "x", delay=None)),
        *(Outcome.retry(leases["retry"], "x", delay=5), Outcome.discard(leases["discard"], "x")),
        *(Outcome.release(leases["release"]), Outcome.crash(leases["crash"], "x")),
        Outcome.poison(leases["poison"], "x"),
    ]
    scene.push("next", user="b")
    return lambda queue: queue.settle(outcomes, 1, worker="w2", lease=LEASE, now=scene.now)


def leases_that_are_renewed(scene: Scene) -> Act:
    scene.push("one", "two")
    leases = scene.pop(2)
    return lambda queue: queue.renew(leases, lease=LEASE, now=scene.now)


def a_heartbeat_that_hears_of_canceled_tasks(scene: Scene) -> Act:
    scene.push("one", "two")
    scene.pop(2)
    scene.queue.cancel("one", now=scene.now)
    return lambda queue: queue.heartbeat("w1", {"host": "h"}, lease=LEASE, now=scene.now)


def a_wish(scene: Scene) -> Act:
    scene.queue.heartbeat("w1", {}, lease=LEASE, now=scene.now)
    return lambda queue: queue.set_worker_command("w1", "drain", now=scene.now)


def a_dead_worker(scene: Scene) -> Act:
    scene.push("one", "two")
    scene.push("first", priority=6)
    tokens = [lease.token for lease in scene.pop(3)]
    scene.queue.heartbeat("w1", {}, lease=LEASE, now=scene.now)
    return lambda queue: queue.release_worker("w1", tokens[:1], forget=True, now=scene.now)


def leases_that_never_arrived(scene: Scene) -> Act:
    scene.push("one", "two", "three")
    scene.push("first", priority=6)
    tokens = [lease.token for lease in scene.pop(4)]
    return lambda queue: queue.reconcile_worker("w1", tokens[2:], now=scene.now)


def small_calls(scene: Scene) -> Act:
    scene.push("one", sla=3)
    (lease,) = scene.pop()
    scene.push("risk", sla=3)
    scene.now += 2
    scene.queue.sweep(now=scene.now)

    def act(queue: Any) -> None:
        queue.set_progress(lease, 1, 2, now=scene.now)
        queue.logs.record(lease, [LogLine(scene.now, "INFO", "shop", "text")], now=scene.now)
        queue.xcom("n").push("k", 1, now=scene.now)
        queue.take_alerts(now=scene.now)
        queue.pause(note="n", until=scene.now + 60, now=scene.now)
        queue.resume(now=scene.now)
        queue.user("a").pause(note="n", until=scene.now + 60, now=scene.now)
        queue.user("a").resume(now=scene.now)
        queue.user("a").set_rate("1/m", now=scene.now)
        queue.user("a").set_rate(None, now=scene.now)

    return act


def a_sweep_with_everything_to_do(scene: Scene) -> Act:
    now = scene.now
    scene.graph(scene.task("dead", max_retries=0), scene.task("w", "b", depends_on=["dead"]))
    scene.end("dead", how="failed")
    scene.push("done", "dropped", user="b")
    scene.end("done", "dropped")
    scene.push("due", execute_after=now + 5)
    scene.push("past", execute_after=now + 5, expires_at=now + 6)
    scene.push("starves", priority=1)
    scene.push("risk", sla=4)
    scene.push("expires", expires_at=now + 6)
    scene.graph(scene.task("never", depends_on=["due"], expires_at=now + 6))
    scene.queue.heartbeat("w9", {}, lease=1, now=now)
    scene.queue.user("c").set_weight(2, now=now)
    scene.queue.user("c").set_weight(1, now=now)
    scene.queue.user("b").set_rate("1/10s", now=now)
    scene.push("lost", "held", user="b", priority=6)
    scene.pop()
    scene.now += 40_000
    return lambda queue: queue.sweep(now=scene.now)


def nothing_left_to_sweep(scene: Scene) -> Act:
    scene.push("done")
    scene.end("done")
    scene.now += 2
    return lambda queue: queue.sweep(now=scene.now)


def canceled_in_every_state(scene: Scene) -> Act:
    scene.push("running")
    scene.pop()
    scene.push("critical", priority=6)
    scene.push("normal")
    scene.push("later", execute_after=scene.now + 9)
    scene.graph(scene.task("waits", "b", depends_on=["normal"], on_dependency_failure="cancel"))
    ids = ["running", "critical", "normal", "later"]
    return lambda queue: queue.cancel_many(ids, now=scene.now)


def waiting_that_is_ended(scene: Scene) -> Act:
    scene.push("later", execute_after=scene.now + 9)
    scene.graph(scene.task("f", "b"), scene.task("waits", depends_on=["f"]))
    scene.order.clear()

    def act(queue: Any) -> None:
        queue.run_now("later", now=scene.now)
        queue.ignore_dependencies("waits", now=scene.now)

    return act


def dead_letters(scene: Scene) -> list[str]:
    scene.push("one", "two", max_retries=0)
    scene.end("one", "two", how="failed")
    return ["one~1", "two~1"]


def a_dead_letter_with_another_payload(scene: Scene) -> Act:
    entries = dead_letters(scene)
    return lambda queue: queue.dlq.requeue_many(entries, {"other": 1}, now=scene.now)


def dead_letters_that_are_given_up(scene: Scene) -> Act:
    entries = dead_letters(scene)
    return lambda queue: queue.dlq.discard_many(entries, now=scene.now)


def dead_letters_that_are_forgotten(scene: Scene) -> Act:
    scene.graph(scene.task("f", max_retries=0), scene.task("w", "b", depends_on=["f"]), run="r1")
    scene.end("f", how="failed")
    dead_letters(scene)
    scene.now += 30
    return lambda queue: queue.dlq.cleanup(20, now=scene.now)


def a_schedule(scene: Scene) -> Act:
    made = scene.task(None)

    def act(queue: Any) -> None:
        queue.schedules.add("s", task=made, every=30, now=scene.now)
        queue.schedules.pause("s", now=scene.now)
        queue.schedules.remove("s", now=scene.now)

    return act


def a_schedule_s_instant(scene: Scene) -> Act:
    scene.queue.schedules.add("s", task=scene.task(None), every=30, now=scene.now)
    scene.now += 31
    return lambda queue: queue.schedules.fire_due(1, now=scene.now)


def a_schedule_s_last_instant(scene: Scene) -> Act:
    """Only a calendar that ends has one: none does within fifty years, so the command is called by its contract."""
    scene.queue.schedules.add("s", task=scene.task(None), every=30, now=scene.now)
    stored = scene.redis.hget(f"{P}schedules", "s")
    due = f"{scene.redis.zscore(f'{P}schedules:due', 's'):.0f}"
    home = scene.queue._shards.home
    args = ["s", stored, due, "", "", "", *push_args(home, [scene.task("last")])]
    call = home.call("fire", args, scene.now, reply=new_nonce())
    return lambda queue: queue._transport.send(call)


def a_payload_that_replaces_another_under_a_limit_on_bytes(scene: Scene) -> Act:
    scene.queue.user("a").set_max_backlog_bytes(10_000, now=scene.now)
    scene.push("first", unique_key="x", debounce=10)
    again = scene.task("a longer payload", unique_key="x", debounce=10)
    return lambda queue: queue.push(again, now=scene.now)


def the_end_of_a_task_under_a_limit_on_bytes(scene: Scene) -> Act:
    scene.queue.user("a").set_max_backlog_bytes(10_000, now=scene.now)
    scene.push("one")
    (lease,) = scene.pop()
    return lambda queue: queue.finish(lease, 1, now=scene.now)


def a_dead_letter_that_is_requeued_under_a_limit_on_bytes(scene: Scene) -> Act:
    scene.queue.user("a").set_max_backlog_bytes(10_000, now=scene.now)
    scene.push("dead", max_retries=0)
    scene.end("dead", how="failed")
    return lambda queue: queue.dlq.requeue("dead~1", now=scene.now)


def a_suspect_that_fails(scene: Scene) -> Act:
    scene.push("suspect")
    (lease,) = scene.pop()
    scene.queue.settle([Outcome.crash(lease, "died")], now=scene.now)
    (again,) = scene.pop()
    return lambda queue: queue.fail(again, "x", now=scene.now)


def a_second_crash_of_a_task_that_ran_alone(scene: Scene) -> Act:
    scene.push("first", "second", name="crashes")
    scene.queue.settle([Outcome.crash(lease, "died") for lease in scene.pop(2)], now=scene.now)
    first, second = scene.pop(2)
    scene.queue.settle([Outcome.crash(first, "died")], now=scene.now)
    return lambda queue: queue.release_worker("w1", [second.token], now=scene.now)


def a_task_beyond_its_hard_limit(scene: Scene) -> Act:
    scene.push("slow", name="slow")
    (lease,) = scene.pop()
    return lambda queue: queue.settle([Outcome.overdue(lease, "too long", delay=5)], now=scene.now)


def a_fetch_during_a_quarantine(scene: Scene) -> Act:
    scene.push("slow", "next", name="slow")
    (lease,) = scene.pop()
    scene.queue.settle([Outcome.overdue(lease, "too long", delay=5)], now=scene.now)
    return lambda queue: queue.pop("w1", lease=LEASE, now=scene.now)


def a_second_task_beyond_its_hard_limit_later(scene: Scene) -> Act:
    scene.push("slow", "next", name="slow")
    (lease,) = scene.pop()
    scene.queue.settle([Outcome.overdue(lease, "too long", delay=5)], now=scene.now)
    (other,) = scene.pop()
    return lambda queue: queue.settle([Outcome.overdue(other, "too long", delay=5)], now=scene.now)


def a_lease_that_moves_to_another_worker(scene: Scene) -> Act:
    scene.push("one")
    (lease,) = scene.pop()
    return lambda queue: queue.take_over(lease.key, "w2", lease=LEASE, now=scene.now)


def a_rate_that_is_changed_while_it_holds_a_user(scene: Scene) -> Act:
    scene.queue.user("a").set_rate("1/m", now=scene.now)
    scene.push("one", "two")
    scene.pop()
    return lambda queue: queue.user("a").set_rate("2/m", now=scene.now)


def a_declared_schedule_of_a_newer_version(scene: Scene) -> Act:
    kept = DeclaredSchedule(scene.task(None), {"every": 30}, "1")
    changed = DeclaredSchedule(scene.task(None), {"every": 60}, "2")

    def declare(queue: FairQueue, version: str, action: VersionAction, **declared: DeclaredSchedule) -> None:
        counting = queue.schedules.report_version(version, "w", action=action, now=scene.now)
        queue.schedules.declare(declared, counting, now=scene.now)

    declare(scene.queue, "old 1", "start", a=kept, b=kept)
    scene.queue.schedules.fire_due(10, now=scene.now + 31)

    def act(queue: FairQueue) -> None:
        declare(queue, "new 2", "start", a=changed)
        queue.schedules.report_version("new 2", "w", action="leave", now=scene.now)
        declare(queue, "old 1", "adopt", a=kept, b=kept)
        for later in (1, 2, 900):
            for version in ("new 2", "old 1"):
                queue.schedules.report_version(version, "w", now=scene.now + later)
        queue.schedules.report_version("later 3", "w", now=scene.now + 40 * 86_400)

    return act


def results_beyond_the_bound(scene: Scene) -> Act:
    scene.config = scene.config.model_copy(update={"max_result_bytes": 5000})
    scene.queue = FairQueue(scene.redis, config=scene.config)
    scene.push("first", "second", "third")
    first, second, third = scene.pop(3)
    scene.queue.finish(first, "x" * 2000, now=scene.now)
    scene.queue.finish(second, "x" * 2000, now=scene.now)
    return lambda queue: queue.finish(third, "x" * 2000, now=scene.now)


def xcom_values_beyond_the_bound(scene: Scene) -> Act:
    scene.config = scene.config.model_copy(update={"max_xcom_bytes": 2500})
    scene.queue = FairQueue(scene.redis, config=scene.config)
    for number in range(2):
        scene.queue.xcom(f"n{number}", user="a").push("k", "x" * 997, now=scene.now + number)
    return lambda queue: queue.xcom("n", user="a").push("k", "x" * 997, now=scene.now + 2)


def xcom_values_of_which_some_have_ended(scene: Scene) -> Act:
    scene.queue.xcom("short", user="a").push("k", 1, ttl=1, now=scene.now)
    return lambda queue: queue.xcom("n", user="a").push("k", 1, now=scene.now + 2)


def a_dead_letter_beyond_the_bound(scene: Scene) -> Act:
    scene.config = scene.config.model_copy(update={"max_dead_letters": 1})
    scene.queue = FairQueue(scene.redis, config=scene.config)
    scene.push("dead", max_retries=0)
    scene.end("dead", how="failed")
    scene.queue.push(Task.create("a", 3, "p" * 3000, task_id="large", max_retries=1), now=scene.now)
    (lease,) = scene.pop()
    return lambda queue: queue.settle([Outcome.fail(lease, "x" * 900, delay=None)], now=scene.now)


def a_list_of_results_that_is_repaired(scene: Scene) -> Act:
    scene.push("one")
    (lease,) = scene.pop()
    scene.queue.finish(lease, "x" * 2000, now=scene.now)
    scene.redis.delete(f"{P}results:a")
    scene.redis.zadd(f"{P}results:a", {"gone": 1})
    return lambda queue: queue.repair(now=scene.now)
