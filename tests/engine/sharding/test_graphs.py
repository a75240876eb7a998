"""Graphs whose tasks live on several shards."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from redis import Redis

from django_fairque.engine.inspection.search import Search
from django_fairque.engine.model.errors import (
    BacklogFullError,
    TaskNotFoundError,
    TaskValidationError,
    UnsignedTaskError,
)
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.signature import DEFAULT_KEY
from django_fairque.engine.model.task import Task
from django_fairque.engine.pushing import push as pushing
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task
from tests.engine.sharding.sharded import ONE, THREE, TWO, finish_all, names_of


class TestGraphs:
    def chain(self) -> list[Task]:
        tasks = [task(ONE, task_id="first")]
        for index, user in enumerate((TWO, THREE, ONE, TWO)):
            tasks.append(task(user, task_id=f"step-{index}", depends_on=[tasks[-1].task_id]))
        return tasks

    def test_a_chain_over_shards_runs_in_order(self, queue: FairQueue) -> None:
        tasks = self.chain()
        results = queue.push_graph(tasks, "run-1", now=NOW)
        assert [result.task_id for result in results] == [task.task_id for task in tasks]
        assert len(queue.run("run-1").tasks) == 5
        assert len(queue.run_graph("run-1").edges) == 4
        assert finish_all(queue) == [ONE, TWO, THREE, ONE, TWO]
        assert queue.run("run-1").state == "finished"

    def test_delays_of_a_graph_count_from_its_push_on_all_shards(self, queue: FairQueue) -> None:
        spans = {"delay": 60, "expires": 300}
        tasks = [task(ONE, task_id="a"), task(TWO, task_id="b", depends_on=["a"], **spans)]
        queue._run(pushing.push_graph(queue._shards, tasks, "", NOW))  # the part on another shard is on its way
        queue.carry_messages(now=NOW + 20)
        found = queue.get_task("b")
        assert (found.execute_after, found.expires_at) == (NOW + 60, NOW + 300)

    def test_recent_runs_on_several_shards_show_their_progress(self, queue: FairQueue) -> None:
        queue.push_graph(self.chain(), "run-1", now=NOW)
        queue.push_graph([task(TWO, task_id="alone")], "run-2", now=NOW + 1)
        new, old = queue.recent_runs()
        assert (new.run_id, new.count, new.done, new.user_id) == ("run-2", 1, 0.0, TWO)
        assert (old.run_id, old.count, old.states[TaskState.DEFERRED], old.is_whole) == ("run-1", 5, 4, True)
        finish_all(queue, NOW + 2)
        assert [(run.done, run.ended_at) for run in queue.recent_runs()] == [(1.0, NOW + 2)] * 2
        assert [run.run_id for run in queue.recent_runs(1)] == ["run-2"]
        with pytest.raises(TaskValidationError, match="limit"):
            queue.recent_runs(0)

    def test_runs_stay_listed_after_thousands_of_other_tasks(self, queue: FairQueue, redis: Redis) -> None:
        queue.push_graph([task(ONE, task_id="alone")], "run-1", now=NOW)
        finish_all(queue)
        queue.push_batch([task(f"u{number % 50}") for number in range(2_500)], now=NOW + 1)
        finish_all(queue, NOW + 2)
        assert [(run.run_id, run.done) for run in queue.recent_runs()] == [("run-1", 1.0)]
        for number in range(210):
            queue.push_graph([task(TWO)], f"more-{number}", now=NOW + 3 + number)
        assert [run.run_id for run in queue.recent_runs(2)] == ["more-209", "more-208"]
        for shard in queue.shards:
            assert redis.zcard(shard._shards.home.keys("runs")) <= 201

    def test_a_search_for_all_states_finds_tasks_of_all_shards(self, queue: FairQueue) -> None:
        queue.push_graph(self.chain(), "run-1", now=NOW)
        found = queue.find(Search(None, payload_bytes=100))
        assert sorted(task.task_id for task in found.tasks) == ["first", *(f"step-{index}" for index in range(4))]

    def test_a_graph_whose_last_task_comes_first_may_have_generated_ids(self, queue: FairQueue) -> None:
        parents = [task(user) for user in (TWO, THREE)]
        last = task(ONE, depends_on=[parent.task_id for parent in parents])
        queue.push_graph([last, *parents], now=NOW)
        assert sorted(finish_all(queue)[:2]) == sorted([TWO, THREE])
        assert queue.get_task(last.task_id).state is TaskState.FINISHED

    def test_a_graph_with_a_refused_part_is_not_pushed(self, queue: FairQueue) -> None:
        queue.user(TWO).set_max_backlog(1, now=NOW)
        with pytest.raises(BacklogFullError, match="nothing of this graph was accepted"):
            queue.push_graph(self.chain(), now=NOW)
        assert names_of(queue) == {}

    def test_an_unsigned_graph_is_refused_where_workers_require_signatures(self, queue: FairQueue) -> None:
        queue.heartbeat("w", {}, requires_signatures=True, now=NOW)
        with patch.object(DEFAULT_KEY, "read", lambda: None), pytest.raises(UnsignedTaskError):
            queue.push_graph(self.chain(), now=NOW)
        assert names_of(queue) == {}
        with patch.object(DEFAULT_KEY, "read", lambda: "a key"):
            queue.push_graph(self.chain(), now=NOW)
        assert finish_all(queue) == [ONE, TWO, THREE, ONE, TWO]

    def test_a_graph_over_several_shards_refuses_tasks_with_a_unique_window(self, queue: FairQueue) -> None:
        with pytest.raises(TaskValidationError, match="push it by itself"):
            queue.push_graph([task(ONE), task(TWO, unique_key="k", unique_for=5)], now=NOW)
        first = task(ONE, unique_key="k", unique_for=5)
        with pytest.raises(TaskValidationError, match="unique_key"):
            queue.push_graph([first, task(TWO, depends_on=[first.task_id])], now=NOW)

    def test_parts_of_a_graph_that_were_not_sent_yet_are_not_lost(self, queue: FairQueue) -> None:
        tasks = self.chain()
        queue._run(pushing.push_graph(queue._shards, tasks, "", NOW))
        assert len(names_of(queue)) == 2  # the others are on their way
        assert finish_all(queue) == [ONE, TWO, THREE, ONE, TWO]

    def test_canceling_a_run_reaches_all_shards(self, queue: FairQueue) -> None:
        queue.push_graph(self.chain(), "run-1", now=NOW)
        assert queue.cancel_run("run-1", now=NOW) == 5
        with pytest.raises(TaskNotFoundError, match="no run"):
            queue.cancel_run("run-2", now=NOW)

    def test_a_task_reads_a_parent_s_result_from_another_shard(self, queue: FairQueue) -> None:
        parent = task(ONE)
        child = task(TWO, depends_on=[parent.task_id])
        queue.push_graph([parent, child], now=NOW)
        queue.finish(queue.pop("w", now=NOW), {"sum": 7}, now=NOW)  # type: ignore[arg-type]
        assert queue.parent_results(child.task_id) == {parent.task_id: {"sum": 7}}
        queue.xcom("ns").push("key", 5, now=NOW)
        assert queue.xcom("ns").pull("key") == 5
