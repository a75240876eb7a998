"""A queue of several shards is one queue: every user on one shard, and all promises over all of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.engine.errors import (
    BacklogFullError,
    ConfigurationError,
    QueueNotDrainedError,
    TaskNotFoundError,
    TaskValidationError,
)
from django_fairque.engine.finding import Search
from django_fairque.engine.ids import bucket_in, bucket_of
from django_fairque.engine.models import Task
from django_fairque.engine.options import QueueConfig
from django_fairque.engine.outcomes import Outcome
from django_fairque.engine.queue import FairQueue
from django_fairque.engine.records import TaskState
from django_fairque.engine.turns import Turns

from .conftest import NOW, task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

SHARDS = 4
CONFIG = QueueConfig(shards=SHARDS, fair_by="tasks")


@pytest.fixture
def queue(redis: Redis) -> Iterator[FairQueue]:
    made = FairQueue(redis, config=CONFIG)
    yield made
    assert made.check_invariants() == []


def users_of(shard: int, count: int) -> list[str]:
    """Users that live on a shard."""
    names = (f"user-{number}" for number in range(10_000))
    found = [name for name in names if bucket_of(name) % SHARDS == shard]
    return found[:count]


ONE, TWO, THREE = (users_of(shard, 1)[0] for shard in (0, 1, 2))


def names_of(queue: FairQueue) -> dict[str, TaskState]:
    page = queue.tasks(limit=1000)
    found = page.items
    while page.cursor is not None:
        page = queue.tasks(limit=1000, cursor=page.cursor)
        found += page.items
    return {each.task_id: each.state for each in found}


def keys_of(redis: Any, pattern: str) -> list[str]:
    """Of a cluster too."""
    everywhere = {"target_nodes": "primaries"} if hasattr(redis, "nodes_manager") else {}
    return [key.decode() for key in redis.keys(pattern, **everywhere)]


def finish_all(queue: FairQueue, now: float = NOW) -> list[str]:
    """Run what can be run until nothing is left, as workers do; the users in the order of their starts."""
    order: list[str] = []
    while True:
        queue.carry_messages(now=now)
        leases = queue.pop_batch(10, "w", now=now)
        if not leases:
            return order
        order += [lease.user_id for lease in leases]
        queue.settle([Outcome.finish(lease) for lease in leases], now=now)


class TestPlaces:
    def test_an_id_says_where_its_user_lives(self) -> None:
        for user in ("a", "b", "{x}", "ü\n", "x" * 256):
            made = Task.create(user, 3, None)
            assert bucket_in(made.task_id) == bucket_of(user)
        assert bucket_in("invoice-7") is None
        assert bucket_of("acme") == 2622  # for all times: users would be lost if this changed

    def test_each_user_is_on_one_shard(self, queue: FairQueue, redis: Redis) -> None:
        for number in range(40):
            queue.push(task(f"user-{number}"), now=NOW)
        shards = {key.split("}")[0] for key in keys_of(redis, "fq:*:user:*")}
        assert len(shards) == SHARDS
        for number in range(40):
            (key,) = keys_of(redis, f"fq:*:user:user-{number}")
            assert f"fq:{{default:{bucket_of(f'user-{number}') % SHARDS}}}:" in key

    def test_everything_pushed_is_served_once(self, queue: FairQueue) -> None:
        pushed = queue.push_batch([task(f"user-{n % 23}") for n in range(200)], now=NOW)
        assert len({result.task_id for result in pushed}) == 200
        stats = queue.get_stats()
        assert (stats.states["queued"], stats.users_ready, stats.totals["pushed"]) == (200, 23, 200)
        assert Counter(finish_all(queue)) == Counter(f"user-{n % 23}" for n in range(200))
        assert queue.get_stats().states["finished"] == 200

    def test_a_chosen_id_is_found(self, queue: FairQueue) -> None:
        for user in (ONE, TWO, THREE):
            queue.push(task(user, task_id=f"of {user}"), now=NOW)
        assert [queue.get_task(f"of {user}").user_id for user in (ONE, TWO, THREE)] == [ONE, TWO, THREE]
        assert queue.position(f"of {TWO}") == 0
        assert queue.cancel(f"of {THREE}", now=NOW)
        assert queue.cancel_many([f"of {ONE}", f"of {TWO}", "unknown"], now=NOW) == 2
        with pytest.raises(TaskNotFoundError, match="unknown"):
            queue.get_task("unknown")

    def test_a_user_is_steered_on_its_shard(self, queue: FairQueue) -> None:
        for user in (ONE, TWO):
            queue.push(task(user), now=NOW)
        queue.user(TWO).pause(now=NOW)
        assert [lease.user_id for lease in queue.pop_batch(5, "w", now=NOW)] == [ONE]
        assert [each.paused for each in queue.user_stats([ONE, TWO])] == [False, True]
        assert queue.user(TWO).purge(now=NOW) == 1

    def test_backlogs_are_full_for_some_only(self, redis: Redis) -> None:
        queue = FairQueue(redis, config=CONFIG.model_copy(update={"max_backlog": 1}))
        with pytest.raises(BacklogFullError) as caught:
            queue.push_batch([task(ONE), task(TWO), task(TWO), task(THREE)], now=NOW)
        assert [getattr(each, "status", None) for each in caught.value.results] == [
            "accepted",
            "accepted",
            "backlog_full",
            "accepted",
        ]


class TestFairness:
    def test_users_of_a_full_shard_and_of_an_empty_one_are_served_alike(self, queue: FairQueue) -> None:
        many, few = users_of(0, 20), users_of(1, 2)
        queue.push_batch([task(user) for user in (*many, *few) for _ in range(40)], now=NOW)
        served = Counter(queue.pop_batch(1, "w", now=NOW)[0].user_id for _ in range(22 * 20))
        assert min(served.values()) >= 19
        assert max(served.values()) <= 21

    @pytest.mark.parametrize("batch", [3, 10, 40])
    def test_in_batches_too(self, queue: FairQueue, batch: int) -> None:
        users = [*users_of(0, 20), *users_of(1, 2), *users_of(2, 5)]
        queue.push_batch([task(user) for user in users for _ in range(100)], now=NOW)
        served = Counter(
            lease.user_id for _ in range(27 * 40 // batch) for lease in queue.pop_batch(batch, "w", now=NOW)
        )
        shares = [served[user] for user in users]
        jain = sum(shares) ** 2 / (len(shares) * sum(each * each for each in shares))
        assert jain > 0.97

    def test_a_newcomer_on_an_idle_shard_is_next(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in users_of(0, 5) for _ in range(50)], now=NOW)
        for _ in range(60):
            queue.pop("w", now=NOW)
        queue.push(task(TWO), now=NOW)
        assert queue.pop("w", now=NOW).user_id == TWO  # type: ignore[union-attr]

    def test_a_shard_is_not_owed_what_it_did_not_use(self, queue: FairQueue) -> None:
        queue.push_batch([task(TWO), *(task(ONE) for _ in range(200))], now=NOW)
        for _ in range(100):
            queue.pop("w", now=NOW)
        queue.push_batch([task(TWO) for _ in range(100)], now=NOW)
        served = Counter(queue.pop("w", now=NOW).user_id for _ in range(40))  # type: ignore[union-attr]
        assert abs(served[ONE] - served[TWO]) <= 2

    def test_one_that_comes_and_goes_gains_nothing(self, queue: FairQueue) -> None:
        there, turns = queue.shards[1], Turns(2)  # as the lanes of a worker see it
        queue.push_batch([task(ONE) for _ in range(900)], now=NOW)
        queue.push(task(TWO), now=NOW)
        served: Counter[str] = Counter()
        for _ in range(300):
            index = turns.next([0, 1])
            settled = queue.shards[index].settle([], 2, worker="w", now=NOW)
            turns.served(index, settled.virtual_time, len(settled.leases), 2)
            for lease in settled.leases:
                served[lease.user_id] += 1
                queue.finish(lease, now=NOW)
                if lease.user_id == TWO:
                    there.push(task(TWO), now=NOW)
        assert served[TWO] <= 1.05 * sum(served.values()) / 2

    def test_lists_of_users(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, TWO, THREE)], now=NOW)
        assert [each.user_id for each in queue.pop_batch(5, "w", [TWO], now=NOW)] == [TWO]
        assert {each.user_id for each in queue.pop_batch(5, "w", [TWO], [ONE], now=NOW)} == {ONE}


class TestLeases:
    def test_outcomes_find_their_shards(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, TWO, THREE)], now=NOW)
        leases = queue.pop_batch(3, "w", now=NOW)
        assert queue.renew(leases, now=NOW) == [True] * 3
        queue.set_progress(leases[0], 1, 2, now=NOW)
        assert queue.get_progress(leases[0].task_id).current == 1  # type: ignore[union-attr]
        outcomes = [Outcome.finish(leases[0]), Outcome.fail(leases[1], "x", delay=None), Outcome.release(leases[2])]
        assert queue.settle(outcomes, now=NOW).statuses == ["finished", "dead", "released"]
        assert [letter.user_id for letter in queue.dlq.letters().items] == [leases[1].user_id]

    def test_a_worker_is_known_on_all_shards(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, TWO)], now=NOW)
        leases = queue.pop_batch(2, "w", now=NOW)
        assert queue.heartbeat("w", {"host": "h"}, now=NOW).renewed == 2
        (record,) = queue.workers()
        assert (record.worker, record.leases) == ("w", 2)
        queue.cancel(leases[0].task_id, now=NOW)
        assert queue.tell_worker("w", "quiet", now=NOW)
        beat = queue.heartbeat("w", {}, now=NOW)
        assert (beat.revoked, beat.wish and beat.wish.kind) == ([leases[0].task_id], "quiet")
        assert queue.release_worker("w", now=NOW) == 1

    def test_pausing_holds_everywhere(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, TWO)], now=NOW)
        queue.pause(now=NOW)
        assert queue.is_paused()
        assert queue.get_stats().paused
        assert queue.pop_batch(2, "w", now=NOW) == []
        queue.resume(now=NOW)
        assert len(queue.pop_batch(2, "w", now=NOW)) == 2

    def test_sweeping_and_purging(self, queue: FairQueue) -> None:
        queue.push_batch([task(user, execute_after=NOW + 5) for user in (ONE, TWO, THREE)], now=NOW)
        assert queue.sweep(now=NOW + 6).promoted == 3
        assert queue.purge(2, now=NOW + 6) == 2
        assert queue.purge(now=NOW + 6) == 1

    def test_work_on_any_shard_wakes(self, queue: FairQueue) -> None:
        queue.push(task(THREE))
        assert queue.wait_for_work(5)


class TestPages:
    def test_tasks_users_and_letters(self, queue: FairQueue) -> None:
        users = [f"user-{number}" for number in range(30)]
        queue.push_batch([task(user) for user in users], now=NOW)
        assert self.all_of(lambda cursor: queue.users(cursor, 7)) == sorted(users)
        assert self.all_of(lambda cursor: queue.users(cursor, 7, busy_first=True)) == sorted(users)
        pages = self.all_of(lambda cursor: queue.tasks("queued", limit=7, cursor=cursor))
        assert sorted(each.user_id for each in pages) == sorted(users)
        found, cursor = list[str](), None
        while True:
            part = queue.find(Search(TaskState.QUEUED), 7, cursor)
            found += [each.user_id for each in part.tasks]
            if (cursor := part.cursor) is None:
                break
        assert sorted(found) == sorted(users)
        for lease in queue.pop_batch(30, "w", now=NOW):
            queue.fail(lease, "boom", retry=False, now=NOW)
        letters = self.all_of(lambda cursor: queue.dlq.letters(7, cursor))
        assert sorted(each.user_id for each in letters) == sorted(users)
        assert sorted(e.original_task.user_id for e in self.all_of(lambda c: queue.dlq.list(7, c))) == sorted(users)
        assert (queue.dlq.count(), queue.dlq.counts()["failed"], queue.dlq.matching().count) == (30, 30, 30)
        (group,) = queue.dlq.groups().groups
        assert group.count == 30
        assert queue.dlq.requeue_many([letter.entry_id for letter in letters[:5]], now=NOW) == 5
        assert queue.dlq.requeue_all(limit=10, now=NOW) == 10
        queue.dlq.discard(letters[-1].entry_id, now=NOW)
        assert queue.dlq.discard_all(now=NOW) == 14

    @staticmethod
    def all_of(page: Any) -> Any:
        items, cursor = [], None
        while True:
            part = page(cursor)
            items += part.items
            if (cursor := part.cursor) is None:
                return sorted(items) if items and isinstance(items[0], str) else items

    @pytest.mark.parametrize("cursor", ["9!0:0", "x", "-1!", "1", "99999!"])
    def test_a_strange_cursor(self, queue: FairQueue, cursor: str) -> None:
        with pytest.raises(ValueError, match="cursor must be one that an earlier page returned"):
            queue.tasks(cursor=cursor)

    def test_figures_are_summed(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, ONE, TWO, THREE)])
        finish_all(queue, None)  # type: ignore[arg-type]
        stats = queue.get_stats()
        assert (stats.totals["finished"], sum(each.finished for each in stats.minutes)) == (4, 4)
        assert stats.wait.count == 4
        activity = queue.get_activity(2)
        assert sum(span.finished for span in activity.spans) == 4
        assert queue.health().reasons == FairQueue(queue.client, "another").health().reasons


class TestSchedules:
    def test_one_lives_with_its_user(self, queue: FairQueue) -> None:
        for user in (ONE, TWO):
            queue.schedules.add(f"of {user}", task=task(user), every=60, now=NOW)
        assert [each.name for each in queue.schedules.list()] == sorted([f"of {ONE}", f"of {TWO}"])
        assert len(queue.schedules.fire_due(now=NOW + 61)) == 2
        assert {each.user_id for each in queue.pop_batch(5, "w", now=NOW + 61)} == {ONE, TWO}
        queue.schedules.add(f"of {ONE}", task=task(THREE), every=60, now=NOW + 61)
        assert [each.task["user_id"] for each in queue.schedules.list() if each.name == f"of {ONE}"] == [THREE]
        queue.schedules.disable(f"of {TWO}", now=NOW + 61)
        assert queue.schedules.run_now(f"of {TWO}", now=NOW + 61)
        assert queue.schedules.remove(f"of {TWO}", now=NOW + 61)
        assert not queue.schedules.remove(f"of {TWO}", now=NOW + 61)
        with pytest.raises(TaskNotFoundError, match="no schedule"):
            queue.schedules.get(f"of {TWO}")


class TestNumber:
    def test_it_does_not_change_by_itself(self, queue: FairQueue, redis: Redis) -> None:
        queue.push(task("a"), now=NOW)
        for number in (1, 2, 8):
            other = FairQueue(redis, config=QueueConfig(shards=number))
            with pytest.raises(ConfigurationError, match=rf"lies on 4 shards and is configured to lie on {number}"):
                other.push(task("a"), now=NOW)
        assert queue.get_stats().totals["pushed"] == 1

    def test_a_queue_of_one_shard_stays_one(self, redis: Redis) -> None:
        FairQueue(redis).push(task("a"), now=NOW)
        with pytest.raises(ConfigurationError, match="lies on 1 shards and is configured to lie on 4"):
            FairQueue(redis, config=CONFIG).get_stats()
        assert FairQueue(redis).get_stats().totals["pushed"] == 1


class TestDependencies:
    def test_one_on_another_shard_releases_when_it_ends(self, queue: FairQueue) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        second = queue.push(task(TWO, depends_on=[first]), now=NOW).task_id
        assert queue.get_task(second).state is TaskState.DEFERRED
        view = queue.dependencies(first)
        assert (view.waiting, view.graph.edges) == ((second,), ((first, second),))
        assert queue.dependencies(second).blocked == (first,)
        assert queue.blockers([second])[second].orphans == ()
        assert finish_all(queue) == [ONE, TWO]

    def test_what_has_ended_does_not_block(self, queue: FairQueue) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        finish_all(queue)
        queue.push(task(TWO, depends_on=[first]), now=NOW)
        assert finish_all(queue) == [TWO]

    def test_an_unknown_one_is_refused(self, queue: FairQueue) -> None:
        absent = Task.create(ONE, 3, None).task_id
        with pytest.raises(TaskNotFoundError, match="does not know"):
            queue.push(task(TWO, depends_on=[absent]), now=NOW)
        assert names_of(queue) == {}

    @pytest.mark.parametrize(
        ("policy", "state"), [("wait", TaskState.DEFERRED), ("cancel", TaskState.CANCELED), ("run", TaskState.QUEUED)]
    )
    def test_failing(self, queue: FairQueue, policy: str, state: TaskState) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        second = queue.push(task(TWO, depends_on=[first], on_dependency_failure=policy), now=NOW).task_id
        queue.fail(queue.pop("w", now=NOW), "x", retry=False, now=NOW)  # type: ignore[arg-type]
        queue.carry_messages(now=NOW)
        assert queue.get_task(second).state is state
        queue.dlq.requeue(f"{first}~1", now=NOW)
        finish_all(queue)
        assert queue.get_task(second).state is (TaskState.CANCELED if policy == "cancel" else TaskState.FINISHED)

    @pytest.mark.parametrize("how", ["cancel", "discard", "forget"])
    def test_what_will_never_finish_cancels(self, queue: FairQueue, how: str) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        second = queue.push(task(TWO, depends_on=[first]), now=NOW).task_id
        if how == "cancel":
            queue.cancel(first, now=NOW)
        else:
            queue.fail(queue.pop("w", now=NOW), "x", retry=False, now=NOW)  # type: ignore[arg-type]
            queue.carry_messages(now=NOW)
        later = NOW + 605_000 if how == "forget" else NOW
        if how == "discard":
            queue.dlq.discard(f"{first}~1", now=NOW)
        for _ in range(3):
            queue.sweep(now=later)
            queue.carry_messages(now=later)
        assert queue.get_task(second).state is TaskState.CANCELED

    def test_news_that_nobody_carried_are_carried_later(self, queue: FairQueue, redis: Redis) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        queue.push(task(TWO, depends_on=[first]), now=NOW)
        here, there = queue.shards[0], queue.shards[1]
        settled = here.settle([Outcome.finish(lease) for lease in here.pop_batch(1, "w", now=NOW)], now=NOW)
        assert settled.has_messages
        assert here.sweep(now=NOW).messages == 1
        assert there.pop("w", now=NOW) is None
        assert queue.carry_messages(now=NOW) == 1
        assert queue.carry_messages(now=NOW) == 0
        assert there.pop("w", now=NOW) is not None
        assert here.sweep(now=NOW).messages == 0

    def test_a_message_that_arrives_twice_has_one_effect(self, queue: FairQueue, redis: Redis) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        tasks = [task(TWO, depends_on=[first]), task(THREE, depends_on=[first])]
        queue.push_graph(tasks, now=NOW)
        outbox = "fq:{default:0}:outbox"
        (lease,) = queue.shards[0].pop_batch(1, "w", now=NOW)
        queue.finish(lease, now=NOW)
        kept = redis.hgetall(outbox)
        assert kept
        queue.carry_messages(now=NOW)
        redis.hset(outbox, mapping=kept)  # type: ignore[arg-type]
        queue.carry_messages(now=NOW)
        assert queue.get_stats().totals["resolved"] == 2
        assert sorted(finish_all(queue)) == sorted([TWO, THREE])

    def test_a_lost_question_is_asked_again(self, queue: FairQueue, redis: Redis) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        second = queue.push(task(TWO, depends_on=[first]), now=NOW).task_id
        redis.delete("fq:{default:0}:deps:remote:" + first)  # as if a failover had lost it
        redis.hdel("fq:{default:0}:task:" + first, "watched", "waited")
        (lease,) = queue.shards[0].pop_batch(1, "w", now=NOW)
        queue.finish(lease, now=NOW)
        queue.carry_messages(now=NOW)
        assert queue.get_task(second).state is TaskState.DEFERRED
        queue.sweep(now=NOW + 61)
        queue.carry_messages(now=NOW + 61)
        assert queue.get_task(second).state is TaskState.QUEUED


class TestGraphs:
    def chain(self) -> list[Task]:
        tasks = [task(ONE, task_id="first")]
        for index, user in enumerate((TWO, THREE, ONE, TWO)):
            tasks.append(task(user, task_id=f"step-{index}", depends_on=[tasks[-1].task_id]))
        return tasks

    def test_a_chain_over_shards_runs_in_order(self, queue: FairQueue) -> None:
        tasks = self.chain()
        results = queue.push_graph(tasks, "run-1", now=NOW)
        assert [result.task_id for result in results] == [each.task_id for each in tasks]
        assert len(queue.run("run-1").tasks) == 5
        assert len(queue.run_graph("run-1").edges) == 4
        assert finish_all(queue) == [ONE, TWO, THREE, ONE, TWO]
        assert queue.run("run-1").state == "finished"

    def test_generated_ids_and_a_tail_that_begins_it(self, queue: FairQueue) -> None:
        parents = [task(user) for user in (TWO, THREE)]
        last = task(ONE, depends_on=[each.task_id for each in parents])
        queue.push_graph([last, *parents], now=NOW)
        assert sorted(finish_all(queue)[:2]) == sorted([TWO, THREE])
        assert queue.get_task(last.task_id).state is TaskState.FINISHED

    def test_none_of_it_when_a_part_is_refused(self, queue: FairQueue) -> None:
        queue.user(TWO).set_max_backlog(1, now=NOW)
        with pytest.raises(BacklogFullError, match="nothing of this graph was accepted"):
            queue.push_graph(self.chain(), now=NOW)
        assert names_of(queue) == {}

    def test_windows_belong_to_one_shard(self, queue: FairQueue) -> None:
        with pytest.raises(TaskValidationError, match="push it by itself"):
            queue.push_graph([task(ONE), task(TWO, unique_key="k", unique_for=5)], now=NOW)

    def test_parts_that_nobody_carried_yet_are_not_lost(self, queue: FairQueue) -> None:
        tasks = self.chain()
        queue._run(_pushed_only(queue, tasks))
        assert len(names_of(queue)) == 2  # the others are on their way
        assert finish_all(queue) == [ONE, TWO, THREE, ONE, TWO]

    def test_a_run_is_canceled_everywhere(self, queue: FairQueue) -> None:
        queue.push_graph(self.chain(), "run-1", now=NOW)
        assert queue.cancel_run("run-1", now=NOW) == 5
        with pytest.raises(TaskNotFoundError, match="no run"):
            queue.cancel_run("run-2", now=NOW)

    def test_results_reach_over_shards(self, queue: FairQueue) -> None:
        parent = task(ONE)
        child = task(TWO, depends_on=[parent.task_id])
        queue.push_graph([parent, child], now=NOW)
        queue.finish(queue.pop("w", now=NOW), {"sum": 7}, now=NOW)  # type: ignore[arg-type]
        assert queue.parent_results(child.task_id) == {parent.task_id: {"sum": 7}}
        queue.xcom("ns").push("key", 5, now=NOW)
        assert queue.xcom("ns").pull("key") == 5


def _pushed_only(queue: FairQueue, tasks: list[Task]):  # type: ignore[no-untyped-def]
    from django_fairque.engine.routing import pushing

    return pushing.push_graph(queue._shards, tasks, "", NOW)


class TestResharding:
    def on(self, redis: Redis, number: int) -> FairQueue:
        return FairQueue(redis, config=CONFIG.model_copy(update={"shards": number}))

    @pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (4, 7), (7, 2)])
    def test_what_outlives_tasks_moves(self, redis: Redis, before: int, after: int) -> None:
        queue = self.on(redis, before)
        users = [f"user-{number}" for number in range(25)]
        for number, user in enumerate(users, 2):
            queue.user(user).set_weight(number, now=NOW)
            queue.user(user).set_rate(f"{number}/m", now=NOW)
        queue.user("paused").pause(now=NOW)
        for user in users[:5]:
            queue.schedules.add(f"of {user}", task=task(user), every=60, now=NOW)
        queue.schedules.disable("of user-1", now=NOW)
        queue.push_batch([task(user) for user in users], now=NOW)
        finish_all(queue)
        due = {each.name: each.next_at for each in queue.schedules.list()}
        assert queue.reshard(after, now=NOW)[0] == before
        moved = self.on(redis, after)
        assert [each.weight for each in moved.user_stats(users)] == list(range(2, 27))
        assert moved.user("paused").stats().paused
        assert {each.name: each.next_at for each in moved.schedules.list()} == due
        assert moved.check_invariants() == []
        shards = {key.split("}")[0] for key in keys_of(redis, "fq:*")}
        assert len(shards) <= after
        moved.push_batch([task(user) for user in users], now=NOW + 9000)
        assert len(finish_all(moved, NOW + 9000)) == 25
        with pytest.raises(ConfigurationError, match="fairque_reshard"):
            self.on(redis, before).push(task("a"))

    def test_only_a_drained_one(self, redis: Redis) -> None:
        queue = self.on(redis, 1)
        queue.push(task("a"), now=NOW)
        queue.push(task("b"), now=NOW)
        lease = queue.pop("w", now=NOW)
        assert lease is not None
        queue.fail(lease, "x", retry=False, now=NOW)
        queue.heartbeat("w", {}, now=NOW)
        with pytest.raises(QueueNotDrainedError) as caught:
            queue.reshard(4, now=NOW)
        for words in ("1 tasks are queued", "1 dead letters are to be requeued", r"1 workers live (w)"):
            assert words in str(caught.value)
        assert len(names_of(queue)) == 2

    def test_bad_numbers_and_the_same(self, redis: Redis) -> None:
        queue = self.on(redis, 1)
        for number in (0, 257, True):
            with pytest.raises(ValueError, match="shards must be a whole number from 1 to 256"):
                queue.reshard(number)
        assert queue.reshard(1) == (1, None)
