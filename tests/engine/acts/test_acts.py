"""Acts on many tasks: workers carry them out in steps, each of which saves its progress, and they can be undone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.acts.acts import TASKS_PER_STEP, TaskAct
from django_fairque.engine.acts.moves import Mover
from django_fairque.engine.model.errors import FairQueueError, TaskNotFoundError, TaskValidationError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import ActKind, TaskState
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.operations import Request, ScriptCall
from django_fairque.engine.transport.connection import Transport
from tests.engine.conftest import NOW, MakeQueue, push_many, task


def bury(queue: FairQueue, count: int, user: str = "u", error: str = "boom") -> list[str]:
    """Make dead letters; return the ids of their tasks."""
    ids = push_many(queue, user, count, name="app.send")
    for lease in queue.pop_batch(count, "w", [user], now=NOW):
        queue.fail(lease, error, retry=False, now=NOW)
    return ids


def advance(queue: FairQueue, act: TaskAct, now: float = NOW, steps: int = 20) -> TaskAct:
    """Take steps as workers do; return the act as it is then."""
    for _ in range(steps):
        queue.acts.advance(now=now)
    return queue.acts.get(act.id)


def advance_until(
    queue: FairQueue,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    after: int,
    mover: Mover | None = None,
) -> None:
    """Let a worker be killed in its step, before the call with this number of the script, counted from 0. A step of
    a move may have fewer calls."""
    calls, send = 0, Transport.send

    def stop(transport: Transport, request: Request, *args: Any) -> Any:
        nonlocal calls
        if isinstance(request, ScriptCall) and request.script == script:
            calls += 1
            if calls > after:
                raise KeyboardInterrupt
        return send(transport, request, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Transport, "send", stop)
        with pytest.raises(KeyboardInterrupt) if mover is None else suppress(KeyboardInterrupt):
            queue.acts.advance(mover, now=NOW)


def states(queue: FairQueue, ids: list[str]) -> set[TaskState]:
    return {queue.get_task(task_id).state for task_id in ids}


def mover_to(other: FairQueue, forged: str = "") -> Mover:
    return Mover(lambda name: other, lambda task, prefix, queue: task.task_id != forged)


@pytest.fixture
def other(redis: Redis) -> FairQueue:
    return FairQueue(redis, "other", QueueConfig(shards=2, result_ttl=60))


def move(queue: FairQueue, act: TaskAct, mover: Mover, now: float = NOW, steps: int = 8) -> TaskAct:
    for _ in range(steps):
        queue.acts.advance(mover, now=now)
    return queue.acts.get(act.id)


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
def queue(request: pytest.FixtureRequest, make_queue: MakeQueue) -> FairQueue:
    return make_queue(fair_by="tasks", retry_jitter=0, shards=request.param)


def test_a_retry_requeues_all_dead_letters_that_match(queue: FairQueue) -> None:
    ids, others = bury(queue, 25), bury(queue, 5, "v")
    act = queue.acts.start("retry", user_id="u", note="fixed", actor="ann", now=NOW)
    assert queue.sweep(now=NOW).acts == 1
    act = advance(queue, act)
    assert (act.state, act.done, act.skipped, act.pending) == ("done", 25, 0, 25)
    assert (act.note, act.actor, act.choice, queue.acts.list()) == ("fixed", "ann", "user_id u", [act])
    assert (states(queue, ids), states(queue, others)) == ({TaskState.QUEUED}, {TaskState.FAILED})
    for lease in queue.pop_batch(25, "w", ["u"], now=NOW):
        queue.finish(lease, now=NOW)
    act = advance(queue, act, NOW + 1)
    assert (act.succeeded, act.pending, act.result) == (25, 0, "25 retried; 25 succeeded")
    assert queue.sweep(now=NOW + 1).acts == 0  # workers ask no more


def test_a_pace_limits_the_number_of_tasks_in_each_second(queue: FairQueue) -> None:
    bury(queue, 40)
    act = queue.acts.start("discard", pace=10, now=NOW)
    done = [advance(queue, act, NOW + second).done for second in (0, 0.5, 1, 2)]
    assert done == [0, 5, 10, 20]
    assert advance(queue, act, NOW + 1_000).done == 40
    slow = queue.acts.start("discard", pace=0.1, now=NOW + 1_000)
    assert [advance(queue, slow, NOW + 1_000 + second).state for second in (9, 10)] == ["running", "done"]


def test_a_trial_changes_one_task_and_waits(queue: FairQueue) -> None:
    bury(queue, 5)
    act = advance(queue, queue.acts.start("retry", trial=True, now=NOW), steps=5)
    assert (act.state, act.done) == ("trial", 1)
    assert advance(queue, queue.acts.go_on(act.id, now=NOW)).done == 5
    with pytest.raises(TaskValidationError, match=r"can't go on act .*: it is done"):
        queue.acts.go_on(act.id, now=NOW)


def test_a_stopped_act_continues_at_the_task_where_it_stopped(queue: FairQueue) -> None:
    bury(queue, 30)
    act = queue.acts.start("discard", pace=10, now=NOW)
    advance(queue, act, NOW + 1)
    assert queue.acts.stop(act.id, now=NOW + 1).state == "stopped"
    assert queue.acts.stop(act.id, now=NOW + 1).state == "stopped"  # a repeated call
    assert advance(queue, act, NOW + 60).done == 10
    queue.acts.go_on(act.id, now=NOW + 60)
    assert advance(queue, act, NOW + 61).done == 20


def test_a_retry_act_stops_if_its_tasks_fail_again_with_the_same_error(queue: FairQueue) -> None:
    bury(queue, 40)
    act = queue.acts.start("retry", pace=10, now=NOW)
    advance(queue, act, NOW + 1, 1)
    for number, lease in enumerate(queue.pop_batch(40, "w", now=NOW + 1)):
        queue.fail(lease, f"KeyError: {number}", retry=False, now=NOW + 1)
    act = advance(queue, act, NOW + 2)
    assert (act.state, act.failed_again, act.same_error) == ("stopped", act.done, act.done)
    assert act.reason.startswith("stopped by itself: ")
    assert act.done < 40
    queue.acts.go_on(act.id, now=NOW + 2)
    assert advance(queue, act, NOW + 3).state == "running"  # the same failures do not stop it again


def test_dead_letters_newer_than_the_act_are_not_changed(queue: FairQueue) -> None:
    bury(queue, 3)
    act = queue.acts.start("discard", now=NOW)
    late = task("u")
    queue.push(late, now=NOW + 5)
    lease = queue.pop("w", now=NOW + 5)
    assert lease
    queue.fail(lease, "boom", retry=False, now=NOW + 5)
    assert advance(queue, act, NOW + 6).done == 3
    assert queue.dlq.count() == 1


def test_a_worker_killed_at_any_call_repeats_nothing_and_loses_nothing(
    queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = bury(queue, 250)
    act = queue.acts.start("retry", now=NOW)
    for calls in (0, 1, 1):
        advance_until(queue, monkeypatch, "requeue", calls)
    act = advance(queue, act)
    assert (act.state, act.done, act.skipped) == ("done", 250, 0)
    assert all(len(queue.history(task_id)) == 2 for task_id in ids)


def test_two_workers_and_two_operators_change_each_task_once(queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(queue, 150)
    first, second = (queue.acts.start("discard", now=NOW) for _ in range(2))
    send, is_first = queue._transport.send, True

    def send_after_another_worker(request: Request, *args: Any) -> Any:
        nonlocal is_first
        if isinstance(request, ScriptCall) and request.script == "discard" and is_first:
            is_first = False
            queue.acts.advance(now=NOW)
        return send(request, *args)

    monkeypatch.setattr(queue._transport, "send", send_after_another_worker)
    acts = [advance(queue, act) for act in (first, second)]
    assert sum(act.done for act in acts) == 150
    assert queue.dlq.count() == 0


def test_a_step_changes_a_bounded_number_of_tasks_and_other_users_are_next(queue: FairQueue) -> None:
    bury(queue, TASKS_PER_STEP + 50)
    act = queue.acts.start("retry", now=NOW)
    queue.acts.advance(now=NOW)
    assert queue.acts.get(act.id).done == TASKS_PER_STEP
    queue.push(task("v"), now=NOW)
    assert "v" in {lease.task.user_id for lease in queue.pop_batch(2 * len(queue.shards), "w", now=NOW)}


def test_a_canceled_act_takes_only_waiting_tasks(queue: FairQueue) -> None:
    ids = push_many(queue, "u", 20)
    scheduled = push_many(queue, "u", 3, execute_after=NOW + 60)
    others = push_many(queue, "v", 4)
    leased = queue.pop("w", ["u"], now=NOW)
    assert leased
    act = queue.acts.start("cancel", user_id="u", now=NOW + 1)
    push_many(queue, "u", 1)
    canceled = [task_id for _ in range(10) for task_id in queue.acts.advance(now=NOW + 1)]
    act = queue.acts.get(act.id)
    assert (act.state, act.done) == ("done", len(canceled))
    assert queue.get_task(leased.task.task_id).state is TaskState.STARTED
    assert set(canceled) >= {*ids, *scheduled} - {leased.task.task_id}
    assert states(queue, others) == {TaskState.QUEUED}


def test_an_act_covers_the_last_tasks_of_a_bulk_at_the_moment_of_its_start(queue: FairQueue) -> None:
    push_many(queue, "u", 300)
    act = queue.acts.start("cancel", user_id="u", now=NOW)
    assert act.total == 300
    assert advance(queue, act).done == 300


def test_a_cancel_act_can_be_limited_to_one_priority(queue: FairQueue) -> None:
    ids = [push_many(queue, "u", 2, priority=priority) for priority in (2, 3)]
    ids.append(push_many(queue, "u", 2, lane="bulk"))
    for name, meant in (("LOW", 0), ("BULK", 2)):
        act = advance(queue, queue.acts.start("cancel", user_id="u", priority=name, now=NOW))
        assert (act.done, act.choice) == (2, f"user_id u, priority {name}")
        assert states(queue, ids[meant]) == {TaskState.CANCELED}
    assert states(queue, ids[1]) == {TaskState.QUEUED}


def test_the_progress_reaches_its_total_while_other_tasks_change(queue: FairQueue) -> None:
    ids = bury(queue, 30)
    act = queue.acts.start("retry", pace=10, now=NOW)
    act = advance(queue, act, NOW + 1)
    assert (act.handled, act.total, act.is_counted_whole) == (10, 30, True)
    left = [task_id for task_id in ids if queue.get_task(task_id).state is TaskState.FAILED]
    assert queue.dlq.requeue_many([f"{task_id}~1" for task_id in left[:4]], now=NOW + 1) == 4
    push_many(queue, "v", 1, task_id="late")
    (lease,) = queue.pop_batch(1, "w", ["v"], now=NOW + 1)
    queue.fail(lease, "boom", retry=False, now=NOW + 1)
    act = advance(queue, act, NOW + 60)
    assert (act.state, act.handled, act.total) == ("done", 26, 26)
    queue.acts.undo(act.id, now=NOW + 60)
    act = queue.acts.get(act.id)
    assert (act.handled, act.total) == (0, 26)
    found = [advance(queue, act, NOW + second) for second in (61, 62, 63)]
    assert [(act.handled, act.total) for act in found] == [(10, 26), (20, 26), (26, 26)]


def undo(queue: FairQueue, act: TaskAct, now: float) -> TaskAct:
    queue.acts.undo(act.id, now=now)
    return advance(queue, act, now)


def test_the_undo_of_a_discard_brings_back_the_same_dead_letters(queue: FairQueue) -> None:
    bury(queue, 120)
    before = {entry.entry_id: entry for entry in queue.dlq.list(1000).items}
    act = advance(queue, queue.acts.start("discard", now=NOW + 10), NOW + 10)
    assert queue.dlq.count() == 0
    queue.sweep(now=NOW + 86_000)  # they are kept for a day
    act = undo(queue, act, NOW + 86_000)
    assert (act.state, act.restored, act.kept) == ("undone", 120, 0)
    after = {entry.entry_id: entry for entry in queue.dlq.list(1000).items}
    assert after.keys() == before.keys()
    for entry_id, entry in after.items():
        assert (entry.reason, entry.moved_at) == (before[entry_id].reason, before[entry_id].moved_at)
    assert queue.dlq.requeue_all(now=NOW + 86_000) == 120


def test_the_undo_of_a_retry_restores_the_tasks_that_have_not_started(queue: FairQueue) -> None:
    ids = bury(queue, 12)
    before = {entry.entry_id: (entry.reason, entry.moved_at) for entry in queue.dlq.list(now=NOW).items}
    act = advance(queue, queue.acts.start("retry", lane="bulk", now=NOW + 10), NOW + 10)
    started = queue.pop("w", now=NOW + 10)
    assert started
    act = undo(queue, act, NOW + 20)
    assert (act.state, act.restored, act.kept) == ("undone", 11, 1)
    assert states(queue, [started.task.task_id]) == {TaskState.STARTED}
    after = {entry.entry_id: (entry.reason, entry.moved_at) for entry in queue.dlq.list(now=NOW).items}
    assert len(after) == len(ids) - 1
    assert after.items() <= before.items()


def test_the_undo_of_a_cancel_restores_tasks_in_their_earlier_order(queue: FairQueue) -> None:
    ids = push_many(queue, "u", 30)
    (scheduled,) = push_many(queue, "u", 1, execute_after=NOW + 60)
    act = advance(queue, queue.acts.start("cancel", user_id="u", now=NOW + 1), NOW + 1)
    queue.push(task("u", task_id="late"), now=NOW + 2)
    act = undo(queue, act, NOW + 3)
    assert (act.restored, act.kept) == (31, 0)
    assert queue.get_task(scheduled).state is TaskState.SCHEDULED
    assert [lease.task.task_id for lease in queue.pop_batch(40, "w", ["u"], now=NOW + 3)] == [*ids, "late"]


@pytest.mark.parametrize("kind", ["cancel", "discard"])
def test_the_undo_restores_the_dependents_that_were_canceled_too(make_queue: MakeQueue, kind: ActKind) -> None:
    queue = make_queue(fair_by="tasks")
    both = [task("u", task_id=name, max_retries=0) for name in ("a", "b")]
    child, late = (
        task("v", task_id="child", depends_on=["a", "b"]),
        task("v", task_id="late", depends_on=["child"], delay=50),
    )
    careless = task("v", task_id="careless", depends_on=["a"], on_dependency_failure="run")
    queue.push_graph([*both, child, late, careless], now=NOW)
    if kind == "discard":
        for lease in queue.pop_batch(2, "w", ["u"], now=NOW):
            queue.fail(lease, "boom", retry=False, now=NOW)
    act = advance(queue, queue.acts.start(kind, user_id="u", now=NOW + 1), NOW + 1)
    assert (act.done, act.dependents) == (2, 2)
    assert states(queue, ["a", "b", "child", "late"]) == {TaskState.CANCELED}
    act = undo(queue, act, NOW + 3)
    assert (act.restored, act.kept) == (4, 0)
    assert states(queue, ["child", "late"]) == {TaskState.DEFERRED}
    assert queue.check_invariants() == []
    if kind == "discard":
        queue.dlq.requeue_all(now=NOW + 3)
    for expected in (["a", "b", "careless"], ["child"]):
        leases = queue.pop_batch(9, "w", now=NOW + 4)
        assert sorted(lease.task_id for lease in leases) == expected
        for lease in leases:
            queue.finish(lease, now=NOW + 4)
    assert queue.get_task("late").state is TaskState.SCHEDULED
    assert queue.check_invariants() == []


def test_the_undo_leaves_a_dependent_canceled_that_another_task_still_holds_back(make_queue: MakeQueue) -> None:
    queue = make_queue()
    both = [task("u", task_id="a"), task("w", task_id="b")]
    queue.push_graph([*both, task("v", task_id="child", depends_on=["a", "b"])], now=NOW)
    act = advance(queue, queue.acts.start("cancel", user_id="u", now=NOW + 1), NOW + 1)
    queue.cancel("b", now=NOW + 1)
    act = undo(queue, act, NOW + 3)
    assert (act.restored, act.kept) == (1, 1)
    assert queue.get_task("child").state is TaskState.CANCELED


def test_an_undo_skips_tasks_that_changed_after_the_act(queue: FairQueue) -> None:
    ids = push_many(queue, "u", 3)
    act = advance(queue, queue.acts.start("cancel", user_id="u", now=NOW + 1), NOW + 1)
    queue.push(task("u", task_id=ids[0]), now=NOW + 2)  # the id of a canceled task is free
    act = undo(queue, act, NOW + 3)
    assert (act.restored, act.kept) == (2, 1)


def test_an_interrupted_undo_is_continued(queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(queue, 250)
    act = advance(queue, queue.acts.start("discard", now=NOW), NOW)
    queue.acts.undo(act.id, now=NOW)
    advance_until(queue, monkeypatch, "undo", 1)
    act = advance(queue, act)
    assert (act.restored, act.kept, queue.dlq.count()) == (250, 0, 250)


def test_a_move_brings_dead_letters_to_another_queue_as_new_tasks(queue: FairQueue, other: FairQueue) -> None:
    ids = bury(queue, 130)
    queue.push_graph(
        [task("u", task_id="parent", max_retries=0), task("u", task_id="child", depends_on=["parent"])], now=NOW
    )
    (lease,) = queue.pop_batch(1, "w", now=NOW)
    queue.fail(lease, "boom", retry=False, now=NOW)
    act = queue.acts.start("move", to="other", now=NOW)
    assert advance(queue, act).state == "running"  # a caller without access to the other queue leaves moves to others
    act = move(queue, act, mover_to(other, forged=ids[0]))
    assert (act.state, act.done, act.skipped, act.pending) == ("done", 129, 2, 0)
    assert act.result == "129 moved to other; 2 skipped"
    assert states(queue, ids[1:]) == {TaskState.CANCELED}
    assert states(queue, [ids[0], "parent"]) == {TaskState.FAILED}
    assert queue.history(ids[1])[-1].kind == "moved"
    leases = other.pop_batch(200, "w", now=NOW)
    assert {(lease.task.name, lease.task.user_id) for lease in leases} == {("app.send", "u")}
    assert len(leases) == 129


def test_the_undo_of_a_move_restores_the_dead_letters_that_have_not_started(queue: FairQueue, other: FairQueue) -> None:
    bury(queue, 120)
    before = {entry.entry_id: entry.reason for entry in queue.dlq.list(1000).items}
    mover = mover_to(other)
    first = move(queue, queue.acts.start("move", to="other", now=NOW), mover)
    started = other.pop_batch(3, "w", now=NOW)
    queue.acts.undo(first.id, now=NOW)
    first = move(queue, first, mover)
    assert (first.state, first.restored, first.kept) == ("undone", 117, 3)
    after = {entry.entry_id: entry.reason for entry in queue.dlq.list(1000).items}
    assert (len(after), after.items() <= before.items()) == (117, True)
    assert other.pop_batch(10, "w", now=NOW) == []
    again = move(queue, queue.acts.start("move", to="other", now=NOW + 1), mover, NOW + 1)
    assert (again.done, len(other.pop_batch(200, "w", now=NOW + 1)), len(started)) == (117, 117, 3)


@pytest.mark.parametrize("script", ["discard", "deliver", "act", "cancel", "undo"])
def test_a_worker_killed_in_a_move_or_its_undo_repeats_nothing_and_loses_nothing(
    queue: FairQueue, other: FairQueue, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    bury(queue, 150)
    act, mover, ran = queue.acts.start("move", to="other", now=NOW), mover_to(other), 0
    for undoes in (False, True):
        if undoes:
            queue.acts.undo(act.id, now=NOW)
        for number, after in enumerate((1, 0, 0, 1, 2, 0, 0, 3, 0)):
            advance_until(queue, monkeypatch, script, after, mover)
            for lease in other.pop_batch(1, "w", now=NOW):  # a repeated delivery must not bring back a task that ended
                other.finish(lease, now=NOW)
                ran += 1
            if not undoes:
                other.sweep(now=NOW + 100 * number)  # the other queue forgets tasks that ended
        act = move(queue, act, mover)
    assert (act.state, act.done, act.restored, act.kept) == ("undone", 150, 150 - ran, ran)
    assert (queue.dlq.count(), other.pop_batch(200, "w", now=NOW)) == (150 - ran, [])
    assert 0 < ran < 20


def test_a_move_continues_when_the_other_queue_has_room_again(queue: FairQueue, redis: Redis) -> None:
    small = FairQueue(redis, "other", QueueConfig(max_backlog=4))
    bury(queue, 10)
    act = move(queue, queue.acts.start("move", to="other", now=NOW), mover_to(small))
    assert (act.state, act.done, act.pending) == ("running", 10, 6)
    assert len(small.pop_batch(4, "w", now=NOW)) == 4
    act = move(queue, act, mover_to(small), NOW + 1)
    assert (act.state, act.pending) == ("running", 2)
    queue.acts.undo(act.id, now=NOW + 1)
    assert len(small.pop_batch(4, "w", now=NOW + 1)) == 4
    assert move(queue, act, mover_to(small), NOW + 2).restored == 2


def test_an_act_and_its_undo_update_the_bytes_of_a_limited_backlog(make_queue: MakeQueue) -> None:
    queue = make_queue(fair_by="tasks", max_backlog_bytes=3_000)
    push_many(queue, "u", 3, payload="x" * 400)
    act = advance(queue, queue.acts.start("cancel", user_id="u", now=NOW), NOW)
    undo(queue, act, NOW)
    with pytest.raises(FairQueueError, match="backlog is full"):
        push_many(queue, "u", 3, payload="x" * 400)


def test_a_hundred_acts_are_kept_and_the_oldest_that_has_ended_makes_room(make_queue: MakeQueue) -> None:
    queue = make_queue()
    first = advance(queue, queue.acts.start("discard", now=NOW), steps=3)
    for _ in range(99):
        queue.acts.start("retry", trial=True, pace=0.01, now=NOW + 1)
    assert len(queue.acts.list()) == 100
    queue.acts.start("retry", trial=True, pace=0.01, now=NOW + 1)
    with pytest.raises(TaskNotFoundError, match="acts are kept for 24 hours"):
        queue.acts.get(first.id)
    with pytest.raises(TaskValidationError, match="workers carry out 100 acts"):
        queue.acts.start("retry", now=NOW + 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda acts: acts.start("purge"), "kind must be one of retry, discard, move, cancel"),
        (lambda acts: acts.start("retry", pace=0), "pace must be from 0.01 to 1000 tasks a second, or None, got 0"),
        (lambda acts: acts.start("retry", note="n" * 201), "note must have at most 200 characters; it has 201"),
        (lambda acts: acts.start("retry", state="queued"), "state and priority belong to a cancel"),
        (lambda acts: acts.start("move"), "to must name another queue"),
        (lambda acts: acts.start("move", to="default"), "to must name another queue"),
        (lambda acts: acts.start("cancel"), "a cancel needs user_id or name"),
        (
            lambda acts: acts.start("cancel", user_id="u", older_than=5),
            "takes no other filter, got user_id, older_than",
        ),
        (lambda acts: acts.start("cancel", user_id="u", state="started"), "state must be one of scheduled, queued"),
        (lambda acts: acts.start("cancel", user_id="u", priority="high"), "priority must be one of BULK"),
        (lambda acts: acts.start("retry", stop_after=0), "stop_after must be a whole number from 1, got 0"),
    ],
)
def test_an_act_with_a_wrong_argument_is_refused(
    make_queue: MakeQueue, call: Callable[[Any], object], message: str
) -> None:
    queue = make_queue()
    with pytest.raises(TaskValidationError, match=message):
        call(queue.acts)
    assert queue.acts.list() == []
