"""The options of the backend: for all tasks, and for tasks by their path."""

from __future__ import annotations

import datetime as dt
import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import pytest
from django.db import transaction

from django_fairque import (
    Concurrency,
    ConfigurationError,
    Priority,
    Rate,
    TaskMiddleware,
    TaskSend,
    TaskState,
    TaskUsageError,
    get_queue,
    lane,
)
from django_fairque.backends.compat import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultStatus,
    default_task_backend,
    task,
    task_finished,
)
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.task import Task as Record
from django_fairque.tasks import registry
from django_fairque.tasks.errors import TaskTimeoutError
from django_fairque.tasks.schedules import make_step
from django_fairque.testing import run_tasks
from django_fairque.worker import Worker
from tests.fixture_types import FairQueue, Settings

from .conftest import Configure
from .project import tasks

add: Any = tasks.add
ADD = "tests.backends.project.tasks.add"


def sent(queue: FairQueue, *args: int) -> Record:
    return queue.get_task(add.enqueue(*(args or (1,))).id)


def test_without_options_tasks_are_not_retried_and_have_the_limits_of_the_queue(queue: FairQueue) -> None:
    task = sent(queue)
    assert (task.max_retries, task.max_deliveries, task.timeout) == (0, 0, None)


def test_options_of_the_backend_hold_for_all_tasks(queue: FairQueue, configure: Configure) -> None:
    configure(MAX_RETRIES=2, MAX_DELIVERIES=1, TIMEOUT=dt.timedelta(minutes=1), SLA=5, EXPIRES=60)
    task = sent(queue)
    assert (task.max_retries, task.max_deliveries, task.timeout, task.sla) == (2, 1, 60, 5)
    assert task.expires_at == pytest.approx(task.created_at + 60, abs=5)


def test_retries_above_the_queues_limit_are_capped(
    queue: FairQueue, configure: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    configure(MAX_RETRIES=500)
    assert sent(queue).max_retries == 100
    assert "have max_retries 500, which is reduced to the queue's limit (max_retry_attempts): 100" in caplog.text


def test_options_for_a_path_override_the_options_for_all_tasks(queue: FairQueue, configure: Configure) -> None:
    options = {"MAX_RETRIES": 3, "DELAY": 30, "SLA": None}
    configure(MAX_RETRIES=1, TIMEOUT=10, SLA=5, TASK_OPTIONS={"tests.backends.project.*": options})
    task = sent(queue)
    assert (task.max_retries, task.timeout, task.state, task.sla) == (3, 10, TaskState.SCHEDULED, None)
    assert queue.get_task(elsewhere.enqueue(1).id).max_retries == 1


@task
def elsewhere(n: int) -> int:
    return n


PATTERNS = {
    "*": {"TIMEOUT": 1, "MAX_RETRIES": 1, "SLA": 1, "MAX_DELIVERIES": 1},
    "tests.backends.project.tasks.a*": {"TIMEOUT": 3, "MAX_RETRIES": 3},
    "tests.*": {"TIMEOUT": 2, "MAX_RETRIES": 2, "SLA": 2},
    ADD: {"TIMEOUT": 4},
    "*.add_async": {"TIMEOUT": 9},
}


@pytest.mark.parametrize("order", [1, -1])
def test_the_most_specific_pattern_decides_each_option(queue: FairQueue, configure: Configure, order: int) -> None:
    configure(TASK_OPTIONS=dict(list(PATTERNS.items())[::order]))
    task = sent(queue)
    assert (task.timeout, task.max_retries, task.sla, task.max_deliveries) == (4, 3, 2, 1)


@pytest.mark.parametrize(("option", "state"), [("DEBOUNCE", "scheduled"), ("UNIQUE_FOR", "queued")])
def test_unique_or_debounced_calls_with_equal_arguments_are_one_task(
    queue: FairQueue, configure: Configure, option: str, state: str
) -> None:
    configure(TASK_OPTIONS={ADD: {option: 30}})
    assert len({add.enqueue(1).id for _ in range(3)}) == 1
    add.enqueue(2)
    assert queue.get_stats().states[state] == 2


def test_a_call_that_sets_its_start_time_is_not_debounced_by_options(queue: FairQueue, configure: Configure) -> None:
    configure(TASK_OPTIONS={ADD: {"DEBOUNCE": 30, "DEBOUNCE_MAX_WAIT": 60, "EXPIRES": 10}})
    task = queue.get_task(add.using(run_after=dt.timedelta(hours=1)).enqueue(1).id)
    assert task.execute_after == pytest.approx(task.created_at + 3600, abs=5)
    assert task.expires_at == pytest.approx(task.created_at + 3610, abs=5)


def test_the_result_has_the_queue_and_priority_set_by_path(queue: FairQueue, configure: Configure) -> None:
    configure(TASK_OPTIONS={ADD: {"QUEUE": "mail", "PRIORITY": -50}})
    result = add.enqueue(1)
    assert (result.task.queue_name, result.task.priority) == ("mail", -50)
    assert get_queue("mail").get_task(result.id).priority is Priority.LOW
    assert add.get_result(result.id) == result
    assert run_tasks("mail") == 1


def test_using_overrides_a_queue_and_priority_by_path(
    queue: FairQueue, configure: Configure, settings: Settings
) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUES": {"mail": {}, "bulk": {}}}
    configure(TASK_OPTIONS={ADD: {"QUEUE": "mail", "PRIORITY": -50}})
    settings.TASKS["default"]["QUEUES"].append("bulk")
    result = add.using(queue_name="bulk", priority=90).enqueue(1)
    assert get_queue("bulk").get_task(result.id).priority is Priority.CRITICAL
    assert add.get_result(result.id).task == result.task


def filed(n: int) -> int:
    return n


def test_a_queue_set_by_path_may_replace_an_undeclared_queue(queue: FairQueue, configure: Configure) -> None:
    declare: Any = task
    with pytest.raises(InvalidTask):
        declare(queue_name="theirs")(filed)
    configure(TASK_OPTIONS={"tests.backends.test_options.filed": {"QUEUE": "mail"}})
    result = declare(queue_name="theirs")(filed).enqueue(1)
    assert get_queue("mail").get_task(result.id).name == "tests.backends.test_options.filed"


def user_of(task: Any, args: list[Any], kwargs: dict[str, Any]) -> str:
    return f"user {args[0]}"


def test_a_user_is_chosen_by_path(queue: FairQueue, configure: Configure) -> None:
    configure(USER=lambda *_: "all", TASK_OPTIONS={ADD: {"USER": "tests.backends.test_options.user_of"}})
    assert sent(queue, 7).user_id == "user 7"
    assert queue.get_task(elsewhere.enqueue(7).id).user_id == "all"


class PassingError(Exception):
    """Worth another attempt."""


def unlucky(kind: str) -> None:
    raise {"passing": PassingError, "late": TaskTimeoutError}.get(kind, KeyError)


def unlucky_too(kind: str) -> None:
    unlucky(kind)


PATH = "tests.backends.test_options"


@pytest.mark.parametrize(
    ("function", "retry_on"), [(unlucky, [PassingError, f"{PATH}.OtherError"]), (unlucky_too, f"{PATH}.PassingError")]
)
def test_only_named_errors_are_retried(queue: FairQueue, configure: Configure, function: Any, retry_on: Any) -> None:
    options = {"MAX_RETRIES": 1, "RETRY_ON": retry_on, "BACKOFF": {"base": 0}}
    configure(TASK_OPTIONS={f"{PATH}.{function.__name__}": options})
    declared = task(function)
    finished: list[Any] = []

    def note(task_result: Any, **_: Any) -> None:
        finished.append(task_result.args)

    task_finished.connect(note)
    sent = {kind: declared.enqueue(kind) for kind in ("passing", "late", "lasting")}
    assert run_tasks() == 5
    task_finished.disconnect(note)
    for kind, attempts in (("passing", 2), ("late", 2), ("lasting", 1)):
        sent[kind].refresh()
        assert (sent[kind].status, sent[kind].attempts) == (TaskResultStatus.FAILED, attempts)
    assert sorted(finished) == [["lasting"], ["late"], ["passing"]]


class OtherError(Exception):
    """Not raised here."""


class Note(TaskMiddleware):
    """Notes what is sent."""

    noted: ClassVar[list[list[str]]] = []

    def around_send(self, send: TaskSend) -> AbstractContextManager[object]:
        self.noted.append([task.name for task in send.tasks])
        return nullcontext()


def test_middleware_is_chosen_by_path(queue: FairQueue, configure: Configure) -> None:
    configure(TASK_OPTIONS={ADD: {"MIDDLEWARE": [f"{PATH}.Note"]}})
    sent(queue)
    elsewhere.enqueue(1)
    assert Note.noted == [[ADD]]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize(
    ("options", "is_sent"), [({}, False), ({"DATABASE": "default"}, True), ({"ON_COMMIT": False}, True)]
)
def test_options_decide_whether_a_task_waits_for_a_transaction_of_another_database(
    queue: FairQueue, configure: Configure, options: dict[str, Any], is_sent: bool
) -> None:
    configure(**options)
    with transaction.atomic(using="other"):
        result = add.enqueue(1)
        assert (result.enqueued_at is not None) is is_sent
    assert queue.get_task(result.id).state is TaskState.QUEUED


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_the_database_of_a_task_decides_which_transaction_it_waits_for(queue: FairQueue, configure: Configure) -> None:
    configure(TASK_OPTIONS={ADD: {"DATABASE": "other"}})
    with transaction.atomic():
        with transaction.atomic(using="other"):
            result = add.enqueue(1)
            assert result.enqueued_at is None
        assert queue.get_task(result.id).state is TaskState.QUEUED


MISTAKES = [
    ({"USERS": 1}, "unknown option 'USERS'; did you mean 'USER'"),
    ({"COLOUR": 1}, "expected some of BACKOFF, CAPTURE_LOGS, DATABASE"),
    ({"USER": 3}, "USER must be a callable"),
    ({"USER": "no.such.thing"}, "can't be imported"),
    ({"USER": "tests.backends.test_options.PATTERNS"}, "is {'*': {"),
    ({"MAX_RETRIES": -1}, "MAX_RETRIES must be an integer from 0 to 1000, got -1"),
    ({"MAX_RETRIES": "3"}, "got '3'"),
    ({"max_retries": 1}, "unknown option 'max_retries'; did you mean 'MAX_RETRIES'?"),
    ({"TIMEOUT": 0}, "TIMEOUT must be more than 0 seconds"),
    ({"TIMEOUT": "1m"}, "TIMEOUT must be"),
    ({"MAX_DELIVERIES": 0}, "MAX_DELIVERIES must be an integer from 1 to 1000, got 0"),
    ({"DATABASE": "othr"}, "DATABASE must be an alias of DATABASES: expected one of 'default', 'other', got 'othr'"),
    ({"QUEUE": "mail"}, "QUEUE is an option of single tasks: give it in TASK_OPTIONS, under their paths"),
    ({"TASK_OPTION": {}}, "did you mean 'TASK_OPTIONS'?"),
    ({"TASK_OPTIONS": []}, "TASK_OPTIONS must be a mapping of task paths to options, got []"),
    ({"TASK_OPTIONS": {"": {}}}, "a task path or pattern must be a text, got ''"),
    ({"TASK_OPTIONS": {ADD: 3}}, f"TASK_OPTIONS['{ADD}'] must be a mapping of options, got 3"),
    (
        {"TASK_OPTIONS": {ADD: {"DEBUNCE": 1}}},
        f"TASK_OPTIONS['{ADD}']: unknown option 'DEBUNCE'; did you mean 'DEBOUNCE'?",
    ),
    ({"TASK_OPTIONS": {ADD: {"BATCH": 1}}}, f"TASK_OPTIONS['{ADD}']: unknown option 'BATCH'"),
    ({"TASK_OPTIONS": {ADD: {"PRIORITY": 101}}}, "PRIORITY must be a whole number from -100 to 100"),
    ({"TASK_OPTIONS": {ADD: {"BACKOFF": 5}}}, "BACKOFF must be a mapping of base, cap, jitter, or a callable of"),
    ({"TASK_OPTIONS": {ADD: {"RETRY_ON": 3}}}, "RETRY_ON must be an exception class or a tuple of them, got 3"),
    ({"RETRY_ON": "no.Such"}, "RETRY_ON must name exception classes; 'no.Such' can't be imported"),
    ({"RETRY_ON": ["datetime.date"]}, "'datetime.date' is"),
    ({"TASK_OPTIONS": {ADD: {"USER": "no.such"}}}, f"TASK_OPTIONS['{ADD}']: USER must be a callable"),
    (
        {"MIDDLEWARE": ["no.Such"]},
        "middleware: expected the dotted path of a subclass of TaskMiddleware, got 'no.Such'",
    ),
    ({"UNIQUE_FOR": 1, "DEBOUNCE": 1}, "unique_for keeps the first of several and debounce the last"),
    ({"UNIQUE_FOR": 1, "TASK_OPTIONS": {ADD: {"DEBOUNCE": 1}}}, f"{ADD}: unique_for keeps the first"),
]


@pytest.mark.parametrize(("options", "words"), MISTAKES)
def test_mistakes_in_options_are_found_by_the_check_and_before_sending(
    queue: FairQueue, configure: Configure, options: dict[str, Any], words: str
) -> None:
    configure(**options)
    (message,) = default_task_backend.check()
    assert message.id == "fairque.E040"
    assert words in message.msg
    with pytest.raises(InvalidTaskBackend, match="OPTIONS of TASKS"):
        tasks.add.enqueue(1)
    with pytest.raises(ConfigurationError, match="what the project declares; correct them") as refused:
        Worker([queue])
    assert words in str(refused.value)
    assert sum(queue.get_stats().states.values()) == 0


@pytest.mark.parametrize(
    ("pattern", "hint"), [(f"{ADD}s", f"Did you mean '{ADD}'?"), ("nowhere.tasks.*", "Write the module path of a task")]
)
def test_the_check_warns_of_a_pattern_that_matches_no_declared_task(
    queue: FairQueue, configure: Configure, pattern: str, hint: str
) -> None:
    configure(TASK_OPTIONS={pattern: {"TIMEOUT": 1}, ADD: {"TIMEOUT": 1}})
    (message,) = default_task_backend.check()
    assert message.id == "fairque.W042"
    assert f"TASK_OPTIONS['{pattern}'] matches no task" in message.msg
    assert hint in (message.hint or "")
    assert sent(queue).timeout == 1


class TestLanes:
    def lane(self, queue: FairQueue, priority: int) -> tuple[str, Priority]:
        found = queue.get_task(add.using(priority=priority).enqueue(1).id)
        return found.lane, found.priority

    def test_priorities_select_no_lane_by_default(self, queue: FairQueue) -> None:
        assert [self.lane(queue, priority)[0] for priority in (100, 0, -100)] == ["normal"] * 3

    def test_priorities_above_a_bound_select_a_lane(self, queue: FairQueue, configure: Configure) -> None:
        configure(URGENT_PRIORITY=50, BULK_PRIORITY=-50)
        assert [self.lane(queue, priority) for priority in (100, 50, 49, 0, -49, -50, -100)] == [
            ("urgent", Priority.NORMAL),
            ("urgent", Priority.NORMAL),
            ("normal", Priority.HIGH),
            ("normal", Priority.NORMAL),
            ("normal", Priority.LOW),
            ("bulk", Priority.NORMAL),
            ("bulk", Priority.NORMAL),
        ]

    def test_the_result_has_the_priority_of_the_call(self, queue: FairQueue, configure: Configure) -> None:
        configure(URGENT_PRIORITY=50)
        result = add.using(priority=70).enqueue(1)
        assert default_task_backend.get_result(result.id).task.priority == 70

    def test_a_priority_that_selects_a_lane_overrides_a_block(self, queue: FairQueue, configure: Configure) -> None:
        configure(URGENT_PRIORITY=50)
        with lane("bulk"):
            assert [self.lane(queue, priority)[0] for priority in (60, 40, 0)] == ["urgent", "bulk", "bulk"]

    def test_a_lane_in_the_options_overrides_priorities(self, queue: FairQueue, configure: Configure) -> None:
        configure(LANE="bulk", URGENT_PRIORITY=50)
        assert self.lane(queue, 60) == ("bulk", Priority.NORMAL)
        configure(URGENT_PRIORITY=50, TASK_OPTIONS={ADD: {"LANE": "normal"}})
        assert self.lane(queue, 60) == ("normal", Priority.VERY_HIGH)

    @pytest.mark.parametrize(
        "options", [{"LANE": "bulk"}, {"TASK_OPTIONS": {ADD: {"PRIORITY": -70}}, "BULK_PRIORITY": -50}]
    )
    def test_a_schedule_may_send_a_task_of_a_lane(
        self, queue: FairQueue, configure: Configure, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
    ) -> None:
        monkeypatch.setattr(registry, "_tasks", {})  # the first declaration in a process counts
        configure(**options)
        add.enqueue(1)
        queue.schedules.add("s", task=make_step(ADD, [1], {}, "default", "acme", None), every=60)
        assert queue.get_task(queue.schedules.run_now("s")).lane == "bulk"

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (
                {"URGENT_PRIORITY": 0},
                "URGENT_PRIORITY must be a whole number from 1 to 100, as the priorities of django",
            ),
            ({"BULK_PRIORITY": 5}, "BULK_PRIORITY must be a whole number from -100 to -1, as the priorities of django"),
            (
                {"BULK_PRIORITY": "low"},
                "BULK_PRIORITY must be a whole number from -100 to -1, as the priorities of django",
            ),
            ({"LANE": "bluk"}, "LANE must be one of urgent, normal, bulk, got 'bluk'"),
            ({"TASK_OPTIONS": {ADD: {"URGENT_PRIORITY": 50}}}, "unknown option 'URGENT_PRIORITY'; "),
            (
                {"TASK_OPTIONS": {ADD: {"LANE": "bulk", "PRIORITY": 50}}},
                "a task of lane bulk has no priority, got HIGH",
            ),
        ],
    )
    def test_a_mistake_in_the_priorities_of_lanes_is_explained(
        self, configure: Configure, options: dict[str, Any], expected: str
    ) -> None:
        configure(**options)
        with pytest.raises(InvalidTaskBackend) as caught:
            add.enqueue(1)
        assert expected in str(caught.value)


def test_limits_by_path_have_the_arguments_of_the_call_and_its_user(queue: FairQueue, configure: Configure) -> None:
    limits = [Concurrency("add:{a}:{b}", 2), Rate("add", lambda user: f"{len(user)}/s", scope="user")]
    configure(TASK_OPTIONS={ADD: {"LIMITS": limits}})
    assert sent(queue, 7).limits == (TaskLimit("add:7:0", 2), TaskLimit("add", gap=142_858, is_of_user=True))


def test_limits_that_do_not_fit_the_task_are_reported_and_refused_when_it_is_sent(
    queue: FairQueue, configure: Configure
) -> None:
    configure(TASK_OPTIONS={ADD: {"LIMITS": [Concurrency("{c}", 2)]}})
    problem = "the key '{c}' of a limit names 'c', which is no argument: expected one of a, b, user"
    (message,) = default_task_backend.check()
    assert (message.id, message.msg) == ("fairque.E040", f"OPTIONS of TASKS['default']: {ADD}: {problem}")
    with pytest.raises(TaskUsageError, match=re.escape(problem)):
        add.enqueue(1)
    configure(TASK_OPTIONS={ADD: {"LIMITS": ["smtp"]}})
    (message,) = default_task_backend.check()
    assert "LIMITS must be a list of Concurrency and Rate" in message.msg
