"""A task that was running when its process died is a suspect: workers run it alone, and only then a crash is charged to it."""

from __future__ import annotations

from typing import cast

import pytest
from redis import Redis

from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.leasing.lease_ops import Fetch
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.lease import LeaseKey, leases_of_reply
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, pop, task


def crash(queue: FairQueue, now: float = NOW) -> None:
    queue.release_worker("w", [pop(queue, now).token], now=now)


def test_only_a_task_that_was_running_when_its_process_died_is_a_suspect(queue: FairQueue) -> None:
    for name in ("ran", "waited"):
        queue.push(task(name, task_id=name), now=NOW)
    leases = {lease.task_id: lease for lease in queue.pop_batch(2, "w", now=NOW)}
    assert not any(lease.is_suspect for lease in leases.values())
    queue.release_worker("w", [leases["ran"].token], now=NOW)
    assert {lease.task_id: lease.is_suspect for lease in queue.pop_batch(2, "w", now=NOW)} == {
        "ran": True,
        "waited": False,
    }


def test_the_end_of_a_lease_makes_no_suspect(queue: FairQueue) -> None:
    """The whole machine may be gone, and all that it ran with it."""
    queue.push(task(), now=NOW)
    queue.pop("w", lease=10, now=NOW)
    queue.sweep(now=NOW + 10)
    lease = pop(queue, NOW + 10)
    assert (lease.delivery, lease.is_suspect) == (2, False)


def test_a_crash_among_other_tasks_never_makes_a_dead_letter(make_queue: MakeQueue) -> None:
    queue = make_queue(max_deliveries=1)
    queue.push(task(task_id="t"), now=NOW)
    crash(queue)
    assert queue.get_task("t").state is TaskState.QUEUED
    crash(queue)
    assert queue.dlq.get("t~1").failure_type is FailureType.POISONED


@pytest.mark.parametrize("how", ["fail", "later"])
def test_a_suspect_whose_process_survives_its_run_is_cleared(queue: FairQueue, how: str) -> None:
    queue.push(task(max_retries=3), now=NOW)
    crash(queue)
    lease = pop(queue)
    outcome = Outcome.fail(lease, "no", delay=1) if how == "fail" else Outcome.retry(lease, "not yet", delay=1)
    queue.settle([outcome], now=NOW)
    assert not pop(queue, NOW + 1).is_suspect


def test_a_released_suspect_stays_a_suspect(queue: FairQueue) -> None:
    queue.push(task(), now=NOW)
    crash(queue)
    queue.release(pop(queue), now=NOW)
    assert pop(queue).is_suspect


def test_a_poisoned_task_that_is_requeued_is_a_suspect(make_queue: MakeQueue) -> None:
    queue = make_queue(max_deliveries=1)
    queue.push(task(task_id="t"), now=NOW)
    crash(queue)
    crash(queue)
    queue.dlq.requeue("t~1", now=NOW)
    assert pop(queue).is_suspect


class TestDelayedReleases:
    def test_a_task_released_with_a_delay_is_ready_after_it_and_uses_no_delivery(self, queue: FairQueue) -> None:
        queue.push(task(task_id="t"), now=NOW)
        assert queue.settle([Outcome.release(pop(queue), delay=2)], now=NOW).statuses == ["released"]
        assert queue.pop("w", now=NOW + 1.9) is None
        assert pop(queue, NOW + 2).delivery == 1

    def test_a_repeated_release_with_a_delay_changes_nothing(self, queue: FairQueue) -> None:
        queue.push(task(task_id="t"), now=NOW)
        outcome = Outcome.release(pop(queue), delay=2)
        for _ in range(2):
            assert queue.settle([outcome], now=NOW).statuses == ["released"]
        assert len(queue.history("t")) == 1


class TestTakingOver:
    def test_a_lease_that_is_taken_over_belongs_to_the_other_worker(self, queue: FairQueue) -> None:
        queue.push(task(task_id="t"), now=NOW)
        first = pop(queue)
        second = queue.take_over(first.key, "other", lease=50, now=NOW)
        assert second is not None
        assert (second.key, second.payload, second.worker, second.delivery) == (first.key, first.payload, "other", 1)
        assert queue.get_task("t").worker == "other"
        assert queue.release_worker("w", now=NOW) == 0
        assert queue.heartbeat("other", {}, lease=50, now=NOW + 40).renewed == 1
        assert queue.sweep(now=NOW + 89).reaped == 0
        queue.finish(second, now=NOW + 89)
        assert queue.get_task("t").state is TaskState.FINISHED

    def test_a_repeated_takeover_returns_the_same_lease(self, queue: FairQueue) -> None:
        """The first reply was lost."""
        queue.push(task(), now=NOW)
        first = pop(queue)
        leases = [queue.take_over(first.key, "other", now=NOW) for _ in range(2)]
        assert [lease and lease.key for lease in leases] == [first.key] * 2
        assert queue.release_worker("other", now=NOW) == 1

    def test_a_lease_that_is_not_current_is_not_taken_over(self, queue: FairQueue) -> None:
        queue.push(task(task_id="t"), now=NOW)
        old = pop(queue)
        queue.release(old, now=NOW)
        assert queue.take_over(old.key, "other", now=NOW) is None
        assert pop(queue).token > old.token
        assert queue.take_over(old.key, "other", now=NOW) is None
        assert queue.take_over(LeaseKey("unknown", 1), "other", now=NOW) is None
        assert queue.release_worker("w", now=NOW) == 1

    def test_a_lease_on_any_shard_can_be_taken_over(self, make_queue: MakeQueue) -> None:
        queue = make_queue(shards=3)
        for number in range(6):
            queue.push(task(f"u{number}"), now=NOW)
        leases = queue.pop_batch(6, "w", now=NOW)
        taken = [queue.take_over(lease.key, "other", now=NOW) for lease in leases]
        assert [lease and (lease.key, lease.shard) for lease in taken] == [(lease.key, lease.shard) for lease in leases]

    def test_a_takeover_with_wrong_arguments_is_refused(self, queue: FairQueue) -> None:
        with pytest.raises(TaskValidationError):
            queue.take_over(LeaseKey("t", 0), "other", now=NOW)
        with pytest.raises(TaskValidationError):
            queue.take_over(LeaseKey("t", 1), "", now=NOW)


class TestQuarantine:
    def exceed(self, queue: FairQueue, now: float = NOW) -> None:
        outcome = Outcome.overdue(pop(queue, now), "it did not end at its time limit", delay=1)
        assert queue.settle([outcome], now=now).statuses == ["retried"]

    def test_tasks_of_a_name_and_user_run_alone_for_ten_minutes_after_a_hard_limit(self, queue: FairQueue) -> None:
        queue.push(task("mallory", name="blocks", max_retries=3), now=NOW)
        self.exceed(queue)
        for user, name in (("mallory", "blocks"), ("mallory", "other"), ("bob", "blocks")):
            queue.push(task(user, name=name, task_id=f"{user}-{name}"), now=NOW)
        leases = {lease.task_id: lease.is_quarantined for lease in queue.pop_batch(3, "w", now=NOW)}
        assert leases == {"mallory-blocks": True, "mallory-other": False, "bob-blocks": False}
        assert pop(queue, NOW + 1).is_quarantined  # the one that exceeded it, too
        queue.push(task("mallory", name="blocks"), now=NOW + 600)
        assert not pop(queue, NOW + 600).is_quarantined

    def crash_alone(self, queue: FairQueue, user: str, name: str, now: float = NOW) -> None:
        """Have a task end its process next to others, which makes it a suspect, and then one in which it runs alone."""
        task_id = queue.push(task(user, name=name), now=now).task_id
        for _ in range(2):
            lease = pop(queue, now)
            assert lease.task_id == task_id
            queue.release_worker("w", [lease.token], now=now)
        queue.cancel(task_id, now=now)

    def is_quarantined(self, queue: FairQueue, user: str, name: str, now: float = NOW) -> bool:
        task_id = queue.push(task(user, name=name), now=now).task_id
        lease = pop(queue, now)
        assert lease.task_id == task_id
        queue.finish(lease, now=now)
        return lease.is_quarantined

    @pytest.mark.parametrize("max_deliveries", [2, 5])
    def test_tasks_of_a_name_and_user_run_alone_for_ten_minutes_after_two_crashes_alone(
        self, make_queue: MakeQueue, max_deliveries: int
    ) -> None:
        queue = make_queue(max_deliveries=max_deliveries)
        for user, name in (("mallory", "crashes"), ("mallory", "other"), ("bob", "crashes")):
            self.crash_alone(queue, user, name)
            assert not self.is_quarantined(queue, user, name)
        self.crash_alone(queue, "mallory", "crashes", NOW + 500)
        assert self.is_quarantined(queue, "mallory", "crashes", NOW + 1000)
        assert not self.is_quarantined(queue, "mallory", "other", NOW + 1000)
        assert not self.is_quarantined(queue, "bob", "crashes", NOW + 1000)
        assert not self.is_quarantined(queue, "mallory", "crashes", NOW + 1100)

    def test_two_crashes_that_are_reported_together_count_as_two(self, queue: FairQueue) -> None:
        for number in range(2):
            queue.push(task("mallory", name="crashes", task_id=str(number)), now=NOW)
        for _ in range(2):
            leases = queue.pop_batch(2, "w", now=NOW)
            queue.settle([Outcome.crash(lease, "died") for lease in leases], now=NOW)
        for number in range(2):
            queue.cancel(str(number), now=NOW)
        assert self.is_quarantined(queue, "mallory", "crashes")

    def test_a_crash_long_ago_does_not_count_for_a_quarantine(self, queue: FairQueue, redis: Redis) -> None:
        self.crash_alone(queue, "mallory", "crashes")
        self.crash_alone(queue, "mallory", "crashes", NOW + 600)
        assert not self.is_quarantined(queue, "mallory", "crashes", NOW + 600)
        self.crash_alone(queue, "zed", "crashes", NOW + 1300)
        assert redis.zrange("fq:{default:0}:crashed_alone", 0, -1) == [b"zed\0crashes"]

    def test_a_repeated_pop_marks_a_quarantined_task_again(self, queue: FairQueue) -> None:
        queue.push(task("mallory", name="blocks", max_retries=3), now=NOW)
        self.exceed(queue)
        queue.push(task("mallory", name="blocks"), now=NOW)
        request = next(leasing.pop_batch_from_shard(queue._shards.home, Fetch(1, "w"), NOW))
        replies = [queue._transport.send(request) for _ in range(2)]
        leases = [lease for reply in replies for lease in leases_of_reply(reply, 5, "w", NOW, 0)]
        assert [lease.is_quarantined for lease in leases] == [True, True]

    def test_a_crash_lengthens_a_quarantine_and_ended_quarantines_are_removed(
        self, queue: FairQueue, redis: Redis
    ) -> None:
        for user, now in (("mallory", NOW), ("trent", NOW + 300), ("mallory", NOW + 400), ("zed", NOW + 950)):
            queue.push(task(user, name="blocks", max_retries=0), now=now)
            outcome = Outcome.overdue(pop(queue, now), "it did not end")
            assert queue.settle([outcome], now=now).statuses == ["dead"]
        members = set(cast("list[bytes]", redis.zrange("fq:{default:0}:quarantine", 0, -1)))
        assert members == {b"mallory\0blocks", b"zed\0blocks"}


class TestReturnedTasks:
    def test_returns_of_started_tasks_are_counted(self, queue: FairQueue) -> None:
        for name in ("began", "crashed", "waited"):
            queue.push(task(name, task_id=name), now=NOW)
        leases = {lease.task_id: lease for lease in queue.pop_batch(3, "w", now=NOW)}
        queue.release_worker("w", [leases["crashed"].token], started=[leases["began"].token], now=NOW)
        assert {name: queue.get_task(name).given_back for name in leases} == {"began": 1, "crashed": 1, "waited": 0}
        assert {lease.task_id: lease.delivery for lease in queue.pop_batch(3, "w", now=NOW)} == {
            "began": 1,
            "crashed": 2,
            "waited": 1,
        }

    def test_the_end_of_a_lease_counts_as_a_return_of_its_task(self, queue: FairQueue) -> None:
        queue.push(task(task_id="t"), now=NOW)
        queue.pop("w", lease=10, now=NOW)
        queue.sweep(now=NOW + 10)
        assert queue.get_task("t").given_back == 1

    def test_every_tenth_return_of_a_started_task_raises_an_alert(self, queue: FairQueue) -> None:
        queue.push(task(task_id="t", name="long"), now=NOW)
        for _ in range(20):
            queue.release_worker("w", started=[pop(queue).token], reason="stopped", now=NOW)
        alerts = [alert for alert in queue.take_alerts(now=NOW) if alert.kind == "given_back"]
        assert [(alert.task_id, alert.times) for alert in alerts] == [("t", 10), ("t", 20)]
        assert "has been given back 10 times" in str(alerts[0])
