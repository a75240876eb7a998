"""Functions keep values from one call to the next. No call may use values that belong to another call."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from django_fairque.engine.model import task as form
from django_fairque.engine.model.errors import BacklogFullError, LuaScriptError
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.conftest import MakeServer
from tests.engine.conftest import NOW, MakeQueue, pop, task
from tests.user_records import change_record, number_of


@pytest.fixture
def client_of_new_server(make_server: MakeServer) -> Iterator[Redis]:
    """A client of a server whose functions have left no garbage in its memory yet."""
    with make_server().client() as client:
        yield client


def test_queues_with_different_options_can_share_a_server(make_queue: MakeQueue) -> None:
    small, large = make_queue(max_backlog=1), make_queue(max_backlog=3)
    for queue in (small, large):
        assert queue.push(task("a"), now=NOW).accepted
    assert large.push(task("a"), now=NOW).accepted
    with pytest.raises(BacklogFullError):
        small.push(task("a"), now=NOW)
    assert large.push(task("a"), now=NOW).accepted
    with pytest.raises(BacklogFullError):
        large.push(task("a"), now=NOW)


def test_two_queues_on_one_server_keep_their_own_sla(make_queue: MakeQueue) -> None:
    hasty = make_queue(sla={"NORMAL": 10}, sla_at_risk_seconds=1)
    patient = make_queue(sla={"NORMAL": 1000}, sla_at_risk_seconds=1)
    for queue in (hasty, patient, hasty, patient):
        queue.push(task("a"), now=NOW)
    late = [queue.sweep(now=NOW + 20).overdue for queue in (hasty, patient, hasty)]
    assert late == [2, 0, 0]


def test_cached_forms_that_differ_in_one_field_stay_separate(make_queue: MakeQueue) -> None:
    """More of them than are kept, each twice, one after the other and in one call."""
    queue = make_queue()
    made = [task("a", max_retries=number % 5, name=f"n{number}", timeout=1 + number % 7) for number in range(250)]
    for sent in made[:125] * 2:
        queue.push(sent, now=NOW)
    queue.push_batch(made, now=NOW)
    for sent in made:
        found = queue.get_task(sent.task_id)
        assert (found.name, found.max_retries, found.timeout) == (sent.name, sent.max_retries, sent.timeout)


def test_optional_fields_of_a_task_are_not_passed_on_to_the_next_of_its_form(make_queue: MakeQueue) -> None:
    """A task that is due later, one with a parent: the fields that they have more are not the next one's."""
    queue = make_queue()
    first = task("a", task_id="first")
    queue.push_graph([first, task("a", task_id="second", depends_on=["first"])], now=NOW)
    queue.push(task("a", task_id="third"), now=NOW)
    assert queue.get_task("third").depends_on == ()
    queue.push(task("b", execute_after=NOW + 50), now=NOW)
    plain = task("b")
    queue.push(plain, now=NOW)
    assert queue.get_task(plain.task_id).execute_after is None


def test_a_task_name_of_any_length_is_stored_unchanged(make_queue: MakeQueue) -> None:
    queue = make_queue()
    names = ["3:a", "x" * 190, "1:", "a b", "ä€😀"]
    made = [task("a", name=name) for name in names for _ in range(2)]
    for sent in made:
        queue.push(sent, now=NOW)
    assert [queue.get_task(task.task_id).name for task in made] == [name for name in names for _ in range(2)]


def test_functions_notice_counters_that_were_restored(make_queue: MakeQueue, redis: Redis) -> None:
    """An older copy of the data comes back, and then another history of the same length."""
    queue = make_queue()
    queue.push(task("a"), now=NOW)
    copy = {key: redis.dump(key) for key in redis.scan_iter()}
    for users in ("bcd", "ef", "a"):
        for user in users:
            queue.push(task(user), now=NOW)
        redis.flushdb()
        for key, value in copy.items():
            redis.restore(key, 0, value or b"")
        queue.push_batch([task(user) for user in users], now=NOW)
        assert queue.check_invariants() == []
        assert queue.get_stats().states["queued"] == 1 + len(users)


def test_the_counters_of_two_queues_stay_separate(redis: Redis) -> None:
    for number in range(3):
        for name in ("one", "two"):
            queue = FairQueue(redis, name)
            queue.push(task("a"), now=NOW)
            assert queue.get_stats().states["queued"] == number + 1
            assert queue.check_invariants() == []


USER = "fq:{default:0}:user:a"


def test_functions_and_scripts_see_each_other_s_writes(redis: Redis) -> None:
    functions, scripts = FairQueue(redis), FairQueue(redis)
    scripts._transport.as_functions = False
    for number in range(4):
        for queue in (functions, functions, scripts):
            queue.push(task("a"), now=NOW)
        functions.user("a").set_max_running(number + 1, now=NOW)
        assert scripts.user("a").stats().max_running == number + 1
        functions.finish(pop(scripts), now=NOW)
        assert functions.check_invariants() == []
    assert functions.user("a").stats().sizes.ready == 8


def test_a_user_s_record_is_read_again_after_another_function_s_failed_write(queue: FairQueue, redis: Redis) -> None:
    """Such a call has not come to its last command, which tells other functions by the counters."""
    queue.push(task("a"), now=NOW)
    change_record(redis, USER, cap=7)
    queue.push(task("a"), now=NOW)
    assert queue.user("a").stats().max_running == 7


def test_a_deleted_user_record_is_not_restored(queue: FairQueue, redis: Redis) -> None:
    queue.push(task("a"), now=NOW)
    redis.flushdb()
    queue.push(task("a"), now=NOW)
    assert number_of(redis, USER, "ready:3") == 1


def test_a_cached_user_whose_key_changed_its_type_stops_no_other_user(make_queue: MakeQueue, redis: Redis) -> None:
    queue = make_queue()
    queue.push_batch([task("a"), task("b")], now=NOW)
    copy = redis.dump(USER)
    redis.delete(USER)
    redis.set(USER, "a text")
    with pytest.raises(LuaScriptError, match="WRONGTYPE"):
        queue.push(task("a"), now=NOW)
    assert [lease.user_id for lease in queue.pop_batch(5, "w", now=NOW)] == ["b"]
    redis.restore(USER, 0, copy or b"", replace=True)
    queue.repair(now=NOW)
    assert [lease.user_id for lease in queue.pop_batch(5, "w", now=NOW)] == ["a"]


def test_values_that_a_failed_call_could_not_write_are_not_cached(client: Redis, redis: Redis) -> None:
    queue = FairQueue(client)
    due = "fq:{default:0}:due"
    queue.push(task("a"), now=NOW)
    redis.set(due, "a text")
    late = task("a", execute_after=NOW + 10)
    with pytest.raises(LuaScriptError, match="WRONGTYPE"):
        queue.push(late, now=NOW)
    redis.delete(due)
    queue.push(task("a"), now=NOW)
    assert (number_of(redis, USER, "sched"), number_of(redis, USER, "ready:3")) == (0, 2)


def test_the_records_of_a_bounded_number_of_users_are_kept(client_of_new_server: Redis) -> None:
    queue = FairQueue(client_of_new_server)
    for _ in range(2):
        queue.push_batch([task(f"u{i}") for i in range(7000)], now=NOW)
        assert client_of_new_server.info("memory")["used_memory_vm_functions"] < 13_000_000
    assert {queue.user(f"u{i}").stats().sizes.ready for i in range(0, 7000, 100)} == {2}


def test_a_failed_call_leaves_no_state_to_the_next(client: Redis, redis: Redis) -> None:
    queue = FairQueue(client)
    users = "fq:{default:0}:users"
    redis.set(users, "a text")
    with pytest.raises(LuaScriptError, match="WRONGTYPE"):
        queue.push(task("a"), now=NOW)
    redis.delete(users)
    queue.push(task("b"), now=NOW)
    assert redis.zrange(users, 0, -1) == [b"b"]
    lease = pop(queue, users=["b"])
    assert lease.user_id == "b"
    assert redis.zrange("fq:{default:0}:state:started", 0, -1) == [lease.task_id.encode()]


@pytest.mark.parametrize("number", [-5, 10**7, 10**15 + 10**7, 2**53 - 1, -(2**53) + 1])
def test_a_whole_number_that_a_command_is_passed_stays_whole(redis: Redis, number: int) -> None:
    """Before Redis 7.4 only one with less than eight zeros at its end: `argument` in numbers.lua makes a text of the others."""
    assert redis.eval("return redis.call('ECHO', tonumber(ARGV[1]))", 0, number) == str(number).encode()


@given(st.floats(allow_nan=False))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_number_that_a_command_is_passed_stays_exact(redis: Redis, number: float) -> None:
    text = redis.eval("return redis.call('ECHO', (struct.unpack('<d', ARGV[1])))", 0, struct.pack("<d", number))
    assert float(text) == number


def test_python_encodes_the_shared_fields_of_tasks_once(make_queue: MakeQueue) -> None:
    queue = make_queue()
    before = form.PushTemplate.pack.cache_info().misses
    for _ in range(20):
        queue.push(task("a", name="the same"), now=NOW)
    assert form.PushTemplate.pack.cache_info().misses == before + 1


class TestRuns:
    """Functions keep values of the tasks that they leased (lib/runs.lua). Other commands may change the tasks later."""

    @pytest.fixture
    def lease(self, queue: FairQueue) -> Lease:
        """One that `settle` has handed out, so that it is kept."""
        queue.push(task("a", task_id="x", max_retries=3), now=NOW)
        (lease,) = queue.settle([], 1, worker="w", now=NOW).leases
        return lease

    def finish(self, queue: FairQueue, *leases: Lease) -> list[str]:
        outcomes = [Outcome.finish(lease, "done", took=0.5) for lease in leases]
        return list(queue.settle(outcomes, now=NOW + 1).statuses)

    def test_the_record_of_a_cached_run_is_not_read_again(self, queue: FairQueue, redis: Redis, lease: Lease) -> None:
        if not queue._transport.as_functions:
            pytest.skip("scripts keep nothing")
        read: list[str] = []
        with redis.monitor() as monitor:
            self.finish(queue, lease)
            redis.echo("the end")
            while not read or "the end" not in read[-1]:
                read.append(monitor.next_command()["command"])
        assert [command.split()[0] for command in read if ":task:x" in command] == ["EXISTS", "HSET"]

    def test_a_cached_run_taken_over_can_be_finished(self, queue: FairQueue, redis: Redis, lease: Lease) -> None:
        assert queue.take_over(lease.key, "other", now=NOW)
        assert self.finish(queue, lease) == ["finished"]
        assert redis.exists("fq:{default:0}:leases:other", "fq:{default:0}:leases:w") == 0

    def test_a_cached_run_that_was_canceled_and_pushed_again_is_stale(self, queue: FairQueue, lease: Lease) -> None:
        queue.cancel("x", now=NOW)
        queue.push(task("b", task_id="y"), now=NOW)
        queue.cancel("y", now=NOW)
        queue.push(task("a", task_id="x"), now=NOW)
        (second,) = queue.settle([], 1, worker="w", now=NOW).leases
        assert self.finish(queue, lease, second) == ["stale", "finished"]

    def test_a_cached_run_that_ended_and_was_pushed_again_is_stale(self, queue: FairQueue, lease: Lease) -> None:
        assert self.finish(queue, lease) == ["finished"]
        queue.push(task("a", task_id="x"), now=NOW + 2)
        (second,) = queue.settle([], 1, worker="w", now=NOW + 2).leases
        assert self.finish(queue, lease, second) == ["stale", "finished"]
        assert queue.user("a").stats().finished == 2

    def test_finishing_a_cached_run_releases_a_later_dependent(self, queue: FairQueue, lease: Lease) -> None:
        queue.push(task("b", task_id="y", depends_on=["x"]), now=NOW)
        assert self.finish(queue, lease) == ["finished"]
        queue.sweep(now=NOW + 2)
        assert queue.get_task("y").state is TaskState.QUEUED

    def test_a_cached_run_whose_lease_went_to_another_worker_is_stale(self, queue: FairQueue, lease: Lease) -> None:
        queue.sweep(now=NOW + 1000)
        (second,) = queue.settle([], 1, worker="other", now=NOW + 1000).leases
        assert queue.settle([Outcome.finish(lease)], now=NOW + 1001).statuses == ["stale"]
        assert queue.settle([Outcome.finish(second)], now=NOW + 1001).statuses == ["finished"]

    @pytest.mark.parametrize("damaged", ["removed", "of another type"])
    def test_a_cached_run_whose_record_is_damaged_stops_no_other_task(
        self, client: Redis, redis: Redis, damaged: str
    ) -> None:
        queue = FairQueue(client)  # whose keys are not checked at the end of the test
        queue.push_batch([task("a", task_id="x"), task("b")], now=NOW)
        leases = queue.settle([], 2, worker="w", now=NOW).leases
        redis.delete("fq:{default:0}:task:x")
        if damaged != "removed":
            redis.set("fq:{default:0}:task:x", "text")
        self.finish(queue, *leases)
        assert queue.user("b").stats().finished == 1
        assert redis.type("fq:{default:0}:task:x") == (b"none" if damaged == "removed" else b"string")
        redis.delete("fq:{default:0}:task:x")  # nothing can be done about one of another type
        queue.repair()
        assert queue.check_invariants() == []

    def test_a_run_that_another_function_has_moved_is_read_again(self, redis: Redis) -> None:
        mine, others = FairQueue(redis), FairQueue(redis)
        mine.push(task("a", task_id="x"), now=NOW)
        (first,) = mine.settle([], 1, worker="w", now=NOW).leases
        others._transport.as_functions = False  # scripts, as of a version that has other functions
        assert others.take_over(first.key, "other", now=NOW)
        others.sweep(now=NOW + 1000)
        (second,) = others.settle([], 1, worker="other", now=NOW + 1000).leases
        assert self.finish(mine, first, second) == ["stale", "finished"]

    def test_a_cached_run_with_an_equal_id_token_and_time_after_a_flush_uses_the_new_record(
        self, client: Redis, redis: Redis
    ) -> None:
        """A flush or a failover may cause this."""
        queue = FairQueue(client)
        queue.push(task("a", task_id="x"), now=NOW)
        (first,) = queue.settle([], 1, worker="w", now=NOW).leases
        redis.flushdb()
        queue.push(task("b", task_id="x"), now=NOW)
        second = pop(queue)
        assert second.key == first.key
        assert self.finish(queue, second) == ["finished"]
        assert queue.user("b").stats().finished == 1
        assert queue.check_invariants() == []

    def test_functions_remember_a_bounded_number_of_started_tasks(self, client_of_new_server: Redis) -> None:
        queue = FairQueue(client_of_new_server)
        queue.push_batch([task("a") for _ in range(6000)], now=NOW)
        leases: list[Lease] = []
        while len(leases) < 6000:
            leases += queue.settle([], 300, worker="w", now=NOW).leases
        assert client_of_new_server.info("memory")["used_memory_vm_functions"] < 13_000_000
        for first in range(0, 6000, 300):
            assert set(self.finish(queue, *leases[first : first + 300])) == {"finished"}
        assert queue.check_invariants() == []
