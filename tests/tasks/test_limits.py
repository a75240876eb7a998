"""A task declares limits by key; each call has their keys."""

from __future__ import annotations

import enum
import subprocess
import sys
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from django_fairque import AtLimitError, Concurrency, Rate, Retry, TaskUsageError, chain, current_task, task
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.models import OutboxEntry
from django_fairque.outbox.clock import DatabaseClock
from django_fairque.outbox.rows import decode, encode
from django_fairque.tasks import limits as task_limits
from django_fairque.testing import capture_tasks

from .helpers import noop, run_next

if TYPE_CHECKING:
    from django_fairque.tasks.execution import Services
    from tests.fixture_types import FairQueue, Server, Settings

ID = uuid.UUID(int=7)
NOW = 2_000_000_000.0


class Box(str, enum.Enum):
    INBOX = "inbox"


class Number(enum.IntEnum):
    ONE = 1


def declare(*limits: Any, **options: Any) -> Any:
    @task(name="fetch", user="customer", limits=limits, **options)
    def fetch(customer: str, box: Any = "all", *rest: Any, **others: Any) -> None: ...

    return fetch


def built(*limits: Any, args: tuple[Any, ...] = ("acme",), **kwargs: Any) -> tuple[TaskLimit, ...]:
    found: tuple[TaskLimit, ...] = declare(*limits).build(args, kwargs).limits
    return found


@pytest.fixture(autouse=True)
def here(queue: FairQueue) -> None: ...


class TestKeys:
    @pytest.mark.parametrize(
        ("box", "text"),
        [
            *[("in", "in"), (7, "7"), (-1, "-1"), (True, "True"), (None, "None")],
            *[(Box.INBOX, "inbox"), (Number.ONE, "1"), ("a:{b}", "a:{b}"), ("日本", "日本")],
        ],
    )
    def test_a_name_in_braces_is_replaced_by_the_argument(self, box: Any, text: str) -> None:
        assert built(Concurrency("box:{box}!", 3), box=box) == (TaskLimit(f"box:{text}!", 3),)

    def test_a_uuid_is_written_as_text(self) -> None:
        @task(name="fetch", limits=[Concurrency("box:{box}", 1)])
        def fetch(box: uuid.UUID) -> None: ...

        assert fetch.build((ID,), {}).limits == (TaskLimit(f"box:{ID}", 1),)

    def test_a_default_counts_as_an_argument(self) -> None:
        assert built(Concurrency("box:{box}", 1)) == (TaskLimit("box:all", 1),)

    def test_user_in_braces_makes_a_limit_of_each_user(self) -> None:
        assert built(Concurrency("{user}/{box}", 1)) == (TaskLimit("acme/all", 1, is_of_user=True),)

    def test_scope_user_makes_a_limit_of_each_user_without_its_name_in_the_key(self) -> None:
        assert built(Rate("mail", "5/10s", scope="user")) == (TaskLimit("mail", gap=2_000_000, is_of_user=True),)

    def test_a_rate_and_a_number_of_one_key_are_one_limit(self) -> None:
        limits = built(Rate("a", "100/s", burst=20), Concurrency("a", 4, at_limit="skip"))
        assert limits == (TaskLimit("a", 4, 10_000, 20, at_limit="skip"),)

    def test_limits_whose_keys_are_equal_in_one_call_are_merged_if_they_agree(self) -> None:
        agreeing = Concurrency("{customer}", 2), Concurrency("{box}", 2)
        assert built(*agreeing, box="acme") == (TaskLimit("acme", 2),)
        with pytest.raises(TaskUsageError, match="two limits of the task have the key 'acme' and different values"):
            built(Concurrency("{customer}", 2), Concurrency("{box}", 3), box="acme")

    @pytest.mark.parametrize("box", [1.5, b"x", ["a"], 10**40, object])
    def test_an_argument_without_a_clear_text_is_refused_with_its_name(self, box: Any) -> None:
        with pytest.raises(
            TaskUsageError, match=r"fetch\.enqueue\(\): argument 'box' is in the key of limit '\{box\}'"
        ):
            built(Concurrency("{box}", 1), box=box)

    @pytest.mark.parametrize("box", ["", "x" * 257, "\ud800"])
    def test_an_empty_or_long_key_is_refused(self, box: str) -> None:
        with pytest.raises(TaskUsageError, match=r"the key of limit '\{box\}' must be"):
            built(Concurrency("{box}", 1), box=box)

    def test_a_batch_has_limits_by_its_user(self) -> None:
        @task(batch=5, name="batch", user=lambda item: item, limits=[Concurrency("{user}", 1), Concurrency("all", 9)])
        def work(items: list[str]) -> None: ...

        assert work.build(("acme",), {}).limits == (TaskLimit("acme", 1, is_of_user=True), TaskLimit("all", 9))


class TestValues:
    def test_functions_get_the_user_and_are_called_for_each_call(self) -> None:
        users: list[str] = []

        def places(user: str) -> int:
            users.append(user)
            return len(users)

        work = declare(Concurrency("all", places), Rate("rate", lambda user: f"{len(user)}/s"))
        assert [work.build((user,), {}).limits for user in ("ab", "abcd", "ab")] == [
            (TaskLimit("all", 1), TaskLimit("rate", gap=500_000)),
            (TaskLimit("all", 2), TaskLimit("rate", gap=250_000)),
            (TaskLimit("all", 3), TaskLimit("rate", gap=500_000)),
        ]
        assert users == ["ab", "abcd", "ab"]

    def test_an_error_of_a_function_is_named_and_nothing_is_sent(self, queue: FairQueue) -> None:
        work = declare(Concurrency("all", {"acme": 2}.__getitem__))
        with pytest.raises(
            TaskUsageError, match="the function of limit 'all' raised KeyError for user 'bob': 'bob'; noth"
        ):
            work.enqueue_many([(("acme",), {}), (("bob",), {})])
        assert queue.get_stats(0).states["queued"] == 0

    @pytest.mark.parametrize("value", [None, 0, 1.0, True, "2", 10**7])
    def test_a_wrong_number_of_a_function_is_refused(self, value: Any) -> None:
        with pytest.raises(
            TaskUsageError, match="function of limit 'all' for user 'acme': at_once must be an integer from"
        ):
            built(Concurrency("all", lambda _user: value))

    @pytest.mark.parametrize("value", [None, "", "fast", 5, "0/s"])
    def test_a_wrong_rate_of_a_function_is_refused(self, value: Any) -> None:
        with pytest.raises(
            TaskUsageError, match="function of limit 'all' for user 'acme': a rate is written 'tasks/unit'"
        ):
            built(Rate("all", lambda _user: value))

    def test_a_shared_limit_smaller_than_the_number_of_shards_is_refused(
        self, server: Server, settings: Settings
    ) -> None:
        settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"SHARDS": 4}}
        assert built(Concurrency("all", 4), Concurrency("mine", 1, scope="user"), Rate("rate", "1/h"))
        with pytest.raises(TaskUsageError, match="limit 'all' lets 3 tasks run at once, and its queue has 4 shards"):
            built(Concurrency("all", lambda _user: 3))


class TestDeclarations:
    @pytest.mark.parametrize("key", ["{}", "{a.b}", "{a[0]}", "{a!r}", "{a:>3}", "{{a}}", "{a", "a}", "{0}", "{ a }"])
    def test_braces_hold_the_name_of_an_argument_only(self, key: str) -> None:
        with pytest.raises(
            TaskUsageError, match=r"Rate\(.*\): braces hold the name of an argument, such as {mailbox_id}"
        ):
            Rate(key, "1/s")

    @pytest.mark.parametrize("key", ["", None, 7, "x" * 257])
    def test_a_key_is_text_of_at_most_256_bytes(self, key: Any) -> None:
        with pytest.raises(TaskUsageError, match="the key must be a non-empty string"):
            Concurrency(key, 1)

    @pytest.mark.parametrize(
        ("kind", "values", "problem"),
        [
            (Concurrency, {"at_once": 0}, r"Concurrency\('a'\): at_once must be an integer from 1 to 1,000,000, got 0"),
            (Concurrency, {"at_once": "4"}, "at_once must be an integer from"),
            (
                Concurrency,
                {"at_once": 1, "at_limit": "drop"},
                "at_limit must be one of 'wait', 'skip', 'newest', got 'drop'",
            ),
            (Concurrency, {"at_once": 1, "scope": "all"}, 'scope must be "user", or None'),
            (Rate, {"rate": "100"}, r"Rate\('a'\): a rate is written 'tasks/unit'"),
            (Rate, {"rate": None}, r"Rate\('a'\): a rate is written"),
            (Rate, {"rate": "1/s", "burst": 0}, "burst must be an integer from 1"),
        ],
    )
    def test_a_wrong_value_is_refused_where_it_is_written(
        self, kind: Any, values: dict[str, Any], problem: str
    ) -> None:
        with pytest.raises(TaskUsageError, match=problem):
            kind("a", **values)

    @pytest.mark.parametrize("wrong", [7, "stripe", ["stripe"], [Concurrency], [TaskLimit("a", 1)]])
    def test_limits_are_a_list_of_limits(self, wrong: Any) -> None:
        with pytest.raises(
            TaskUsageError, match=r"@task on work: limits must be a list of Concurrency and Rate, such as"
        ):
            noop(limits=wrong)

    def test_one_limit_needs_no_list(self) -> None:
        assert noop(limits=Concurrency("a", 1)).build((), {}).limits == (TaskLimit("a", 1),)

    def test_a_name_that_is_no_argument_is_refused_with_the_names(self) -> None:
        with pytest.raises(
            TaskUsageError, match="names 'bx', which is no argument: expected one of customer, box, user"
        ):
            declare(Concurrency("{bx}", 1))
        with pytest.raises(TaskUsageError, match="names 'others', which is no argument"):
            declare(Concurrency("{others}", 1))
        with pytest.raises(TaskUsageError, match="the items of a batch task have no argument names; expected user"):
            task(name="batch", batch=5, limits=[Concurrency("{items}", 1)])(lambda items: None)

    def test_at_most_four_keys_are_accepted(self) -> None:
        four = [Concurrency(str(number), 1) for number in range(4)]
        noop(limits=[*four, Rate("0", "1/s")])
        with pytest.raises(TaskUsageError, match="limits may have at most 4 keys, got 5 limits"):
            noop(limits=[*four, Rate("4", "1/s")])

    def test_two_numbers_of_one_key_are_refused(self) -> None:
        with pytest.raises(TaskUsageError, match="limits has two Rate of the key 'a': leave one out"):
            noop(limits=[Rate("a", "1/s"), Concurrency("a", 1), Rate("a", "2/s"), Rate("a", "1/s", scope="user")])

    def test_a_call_can_not_choose_limits(self) -> None:
        with pytest.raises(TaskUsageError, match="'limits' is an option of the declaration, not of one call"):
            noop().using(limits=[])

    def test_the_name_that_celery_uses_is_explained(self) -> None:
        with pytest.raises(TaskUsageError, match="unknown option 'rate_limit'; it is called 'limits' here"):
            noop(rate_limit="10/m")


class TestSending:
    def test_constant_limits_are_built_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        work = declare(Concurrency("all", 4), Rate("all", "5/s", scope="user"))
        tasks = [work.build(("acme",), {}), work.build(("bob",), {})]
        monkeypatch.setattr(task_limits, "build_limits", None)
        monkeypatch.setattr("django_fairque.tasks.definition.build_limits", None)
        tasks.append(work.build(("eve",), {}))
        assert {one.limits for one in tasks} == {(TaskLimit("all", 4), TaskLimit("all", gap=200_000, is_of_user=True))}

    def test_steps_of_pipelines_and_many_calls_have_limits(self) -> None:
        work = declare(Concurrency("{box}", 1))
        with capture_tasks() as captured:
            chain(work.s("acme", "a"), work.using(priority=4).s("acme", "b")).enqueue()
            work.enqueue_many([(("acme", box), {}) for box in "cd"])
        assert [one.task.limits for one in captured] == [(TaskLimit(key, 1),) for key in "abcd"]

    def test_a_schedule_keeps_the_limits_of_its_task(self, queue: FairQueue) -> None:
        work = declare(Concurrency("{user}/{box}", 2, at_limit="newest"), Rate("all", "7/s", burst=3))
        for _ in range(2):
            queue.schedules.add("nightly", task=work.s("acme", "in"), every=60, start=NOW)
        queue.schedules.fire_due(now=NOW + 60)
        (fired,) = queue.tasks("queued")
        assert fired.limits == work.build(("acme", "in"), {}).limits
        queue.schedules.add("nightly", task=noop().s(), every=60, start=NOW)

    @pytest.mark.django_db
    def test_a_task_keeps_its_limits_in_the_outbox(self) -> None:
        limits = Concurrency("{user}", 2, at_limit="newest"), Rate("all", "7/s", burst=3)
        sent = declare(*limits).build(("acme",), {})
        row = type("Row", (), {"tasks": encode([sent], DatabaseClock("default"))})
        (read,) = decode(row)  # type: ignore[arg-type]
        assert read.limits == sent.limits != ()
        assert read.limits[0].key == "acme"

    def test_declaring_limits_imports_no_pydantic(self) -> None:
        code = "import sys, django_fairque; django_fairque.Concurrency('a', 1); sys.exit('pydantic' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestClosing:
    def run(self, queue: FairQueue, services: Services, key: str, until: Any = 60, **options: Any) -> str:
        """Run a task that closes a limit, and return its state."""

        @task(name="call", user="customer", max_retries=0, **options)
        def call(customer: str, box: uuid.UUID | int) -> None:
            current_task().close_limit(key, until)

        result = call.enqueue("acme", ID)
        assert run_next(queue, services) in ("finished", "dead")
        return next((attempt.error for attempt in queue.history(result.id)), "")

    @pytest.mark.parametrize("key", ["api:{box}", f"api:{ID}"])
    def test_a_running_task_closes_a_shared_limit(self, queue: FairQueue, services: Services, key: str) -> None:
        assert not self.run(queue, services, key, limits=[Concurrency("api:{box}", 5)])
        stats = queue.limit(f"api:{ID}").stats()
        assert stats.is_closed
        assert 50 < (stats.closed_until or 0) - time.time() < 70

    @pytest.mark.parametrize(
        ("limit", "key"), [(Rate("api", "9/s", scope="user"), "api"), (Concurrency("api/{user}", 5), "api/{user}")]
    )
    def test_a_running_task_closes_the_limit_of_its_user(
        self, queue: FairQueue, services: Services, limit: Any, key: str
    ) -> None:
        assert not self.run(queue, services, key, limits=[limit])
        (stats,) = queue.limits()
        assert (stats.key, stats.user, stats.is_closed) == (key.replace("{user}", "acme"), "acme", True)

    def test_tasks_of_a_limit_that_a_task_has_closed_wait_without_using_a_retry(
        self, queue: FairQueue, services: Services
    ) -> None:
        @task(name="call", limits=[Rate("api", "100/s", burst=20)])
        def call() -> None:
            current_task().close_limit("api", until=timedelta(hours=1))
            raise Retry(delay=0, reason="too many requests")

        results = [call.enqueue() for _ in range(2)]
        assert run_next(queue, services) == "retried"
        assert queue.pop("w") is None
        queue.limit("api").open()
        queue.sweep()
        assert len(queue.pop_batch(5, "w")) == 2
        assert [queue.get_task(result.id).retry_count for result in results] == [0, 0]

    @pytest.mark.parametrize(
        ("options", "key", "error"),
        [
            (
                {"limits": [Rate("a", "9/s"), Concurrency("{box}", 5)]},
                "b",
                "has no limit 'b'; its limits are 'a', '{box}'",
            ),
            ({}, "b", "task 'call' has no limit 'b'; it was declared without limits"),
            ({"limits": [Rate("b", "9/s")], "until": "30"}, "b", r"got the text '30'; convert a header"),
        ],
    )
    def test_a_wrong_key_or_end_fails_the_task(
        self, queue: FairQueue, services: Services, options: dict[str, Any], key: str, error: str
    ) -> None:
        assert error in self.run(queue, services, key, **options)
        assert queue.limits() == []

    def test_a_captured_task_records_the_limits_that_it_closes(self) -> None:
        @task(name="call", limits=[Rate("api:{box}", "100/s")])
        def call(box: int, key: str = "api:{box}") -> None:
            current_task().close_limit(key, 30)

        call(7)  # outside of a worker this does nothing
        with capture_tasks() as captured:
            call.enqueue(7)
            captured.run()
            assert captured[0].closed_limits == {"api:7": 30}
            call.enqueue(7, "other")
            with pytest.raises(TaskUsageError, match="has no limit 'other'"):
                captured.run()


class TestSkipping:
    """A task with ``at_limit="skip"`` is left out where nobody could handle its error."""

    @pytest.fixture
    def work(self) -> Any:
        return declare(Concurrency("k", 1, at_limit="skip"))

    def test_enqueue_many_at_a_full_limit_raises_and_sends_other_tasks(self, queue: FairQueue, work: Any) -> None:
        with pytest.raises(AtLimitError) as error:
            work.enqueue_many([(("acme",), {}) for _ in range(3)])
        assert len(error.value.refused) == 2
        assert queue.get_stats(0).states["queued"] == 1

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("outbox", [False, True])
    @pytest.mark.parametrize("is_graph", [False, True])
    def test_a_commit_does_not_send_a_task_that_a_full_limit_refuses(
        self, queue: FairQueue, settings: Settings, work: Any, outbox: bool, is_graph: bool
    ) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": outbox}
        work.enqueue("acme")
        with transaction.atomic():
            free = noop("free").enqueue()
            if is_graph:
                chain(work.s("acme"), noop("last").s()).enqueue()
            else:
                work.enqueue("acme")
        assert free.state == "queued"
        assert queue.get_stats(0).states["queued"] == 2
        assert not OutboxEntry.objects.exists()
