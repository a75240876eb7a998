"""Integration with Sentry: errors of tasks with their stack frames, traces, and the users of tasks. Needs sentry-sdk,
which ``django-fairque[sentry]`` installs.

Add `FairqueIntegration` where the project calls ``sentry_sdk.init``, in its settings::

    sentry_sdk.init(dsn="…", integrations=[FairqueIntegration()])

The integration adds `SentryMiddleware` around sending and running tasks, before the project's own middleware.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import sentry_sdk
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import Scope, add_global_event_processor
from sentry_sdk.tracing import TransactionSource
from sentry_sdk.utils import capture_internal_exceptions, event_from_exception

from django_fairque import signals
from django_fairque.conf.current import install_middleware
from django_fairque.safely import get_traceback, is_a
from django_fairque.tasks.errors import Discard, Retry, TaskRevoked, TaskTimeoutError
from django_fairque.tasks.middleware import NO_MIDDLEWARE, TaskMiddleware, TaskRun, TaskSend
from django_fairque.tasks.retries import NextStep, decide_next_step, replace_cancellation
from django_fairque.tasks.tracing import BAGGAGE_HEADER
from django_fairque.worker.common.log import printable

try:
    from sentry_sdk import traces as streamed
    from sentry_sdk.tracing_utils import has_span_streaming_enabled
except ImportError:  # older versions have no streamed spans

    def has_span_streaming_enabled(options: dict[str, Any] | None) -> bool:  # noqa: ARG001
        return False


if TYPE_CHECKING:
    from logging import LogRecord
    from types import TracebackType

__all__ = ["FairqueIntegration", "SentryMiddleware"]

ORIGIN = "auto.queue.fairque"
TRACE_HEADER = "sentry-trace"
CONTROL_FLOW = (Retry, Discard, TaskRevoked, asyncio.CancelledError, GeneratorExit)
"""Exceptions that end a task's function without being errors of the task."""
MAX_REPORTED_FAILURES = 10_000
"""Maximum number of reported failures that are remembered until the log line about each failure comes."""
MAX_NAMED_TASKS = 20
"""Maximum number of task ids of a batch that a Sentry event contains."""
FLUSH_SECONDS = 2.0
"""Maximum seconds for which a worker process that ends waits until its Sentry events are sent."""


class FairqueIntegration(Integration):
    """The integration for ``sentry_sdk.init``: reports the errors of tasks, continues traces in them, and measures sending
    and running.

    ``user`` determines how a task's user appears in Sentry: ``"id"`` (the default), ``"hash"`` (a keyed hash of the id,
    the same in all processes of the project), or None if the user must not appear. With ``report_retried`` (default:
    True), a failure after which the task is tried again is reported with the level ``warning``. Otherwise only the last
    failure is reported.

    Raises `ValueError` if ``user`` has another value.
    """

    identifier = "fairque"
    origin = ORIGIN

    def __init__(self, *, user: Literal["id", "hash"] | None = "id", report_retried: bool = True) -> None:
        if user not in ("id", "hash", None):
            raise ValueError(f'FairqueIntegration(user=…): expected "id", "hash" or None, got {user!r}')
        self.user = user
        self.report_retried = report_retried

    @staticmethod
    def setup_once() -> None:
        """Add the middleware, once in a process. sentry-sdk calls this."""
        install_middleware(f"{__name__}.{SentryMiddleware.__name__}")
        add_global_event_processor(_process_log_event)
        signals.worker_stopped.connect(_flush, dispatch_uid=__name__)

    def user_name(self, user_id: str | None) -> str | None:
        """Return the name under which a user appears in Sentry; None if the user must not appear.

        ``user_id`` is the user's id, None for none.
        """
        if user_id is None or self.user is None:
            return None
        if self.user == "id":
            return user_id
        from django.utils.crypto import salted_hmac

        return salted_hmac(__name__, user_id, algorithm="sha256").hexdigest()[:16]


def _integration() -> FairqueIntegration | None:
    """Return the integration of the current Sentry client."""
    found: FairqueIntegration | None = sentry_sdk.get_client().get_integration(FairqueIntegration)
    return found


def _flush(**_: Any) -> None:
    if _integration() is not None:
        sentry_sdk.flush(FLUSH_SECONDS)


# --- spans, either as transactions or streamed ---


@contextmanager
def _open_span(op: str, name: str, attributes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Open a span below the current span. Yields the span's attributes, to which the caller may add further ones until
    the span ends.
    """
    if has_span_streaming_enabled(sentry_sdk.get_client().options):
        if streamed.get_current_span() is None:
            yield {}
            return
        about = {"sentry.op": op, "sentry.origin": ORIGIN, **attributes}
        with streamed.start_span(name=name, attributes=about) as streamed_span:
            added: dict[str, Any] = {}
            yield added
            streamed_span.set_attributes(added)
        return
    with sentry_sdk.start_span(op=op, name=name, origin=ORIGIN) as span:
        added = dict(attributes)
        try:
            yield added
        finally:
            for key, value in added.items():
                span.set_data(key, value)


def _open_transaction(name: str, headers: dict[str, str], sampling: dict[str, Any]) -> AbstractContextManager[Any]:
    """Open the outermost span of a run. The span belongs to the trace that the headers name, or to a new trace."""
    op = "queue.task.fairque"
    if has_span_streaming_enabled(sentry_sdk.get_client().options):
        streamed.continue_trace(headers)
        Scope.set_custom_sampling_context(sampling)
        about: dict[str, Any] = {"sentry.op": op, "sentry.origin": ORIGIN, "sentry.segment.name.source": "task"}
        return streamed.start_span(name=name, attributes=about, parent_span=None)
    transaction = sentry_sdk.continue_trace(headers, op=op, name=name, source=TransactionSource.TASK, origin=ORIGIN)
    transaction.set_status("ok")
    return sentry_sdk.start_transaction(transaction, custom_sampling_context=sampling)


# --- around sending and running ---


class SentryMiddleware(TaskMiddleware):
    """Opens spans around sending and running tasks, opens a Sentry scope for each run, and reports the run's error.
    `FairqueIntegration` adds this middleware.
    """

    async_capable: ClassVar[bool] = True

    def around_send(self, send: TaskSend) -> AbstractContextManager[object]:
        """Return a context manager with a ``queue.publish`` span. ``send`` contains the tasks, which get the headers of
        the trace.
        """
        return NO_MIDDLEWARE if _integration() is None else _open_send_span(send)

    def around_run(self, run: TaskRun) -> AbstractContextManager[object]:
        """Return a context manager with a scope for the run and a ``queue.process`` span. ``run`` describes the run."""
        integration = _integration()
        return NO_MIDDLEWARE if integration is None else _Running(run, integration)


@contextmanager
def _open_send_span(send: TaskSend) -> Iterator[None]:
    names = {task.name for task in send.tasks}
    attributes: dict[str, Any] = {"messaging.system": "fairque", "messaging.destination.name": send.queue}
    with _open_span("queue.publish", names.pop() if len(names) == 1 else send.queue, attributes) as added:
        with capture_internal_exceptions():
            _add_headers(send.headers)
        yield
        if len(send.tasks) == 1:
            added["messaging.message.id"] = send.tasks[0].task_id
            added["messaging.message.body.size"] = len(send.tasks[0].payload_bytes)
        else:
            added["messaging.batch.message_count"] = len(send.tasks)


def _add_headers(headers: dict[str, str]) -> None:
    if trace := sentry_sdk.get_traceparent():
        headers[TRACE_HEADER] = trace
    if baggage := sentry_sdk.get_baggage():
        others = headers.get(BAGGAGE_HEADER)
        headers[BAGGAGE_HEADER] = f"{others},{baggage}" if others else baggage


class _Running:
    """The context manager around one run."""

    def __init__(self, run: TaskRun, integration: FairqueIntegration) -> None:
        self._run, self._integration = run, integration
        self._open: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        run = self._run
        with capture_internal_exceptions():  # an error in sentry-sdk must not make the task fail
            scope = self._enter(sentry_sdk.isolation_scope())
            scope.clear_breadcrumbs()
            describe_task(scope, run.name, run.queue, self._integration.user_name(run.user_id))
            scope.set_context("fairque", _facts(run))
            sampling = {"fairque_task": {"name": run.name, "queue": run.queue, "user_id": run.user_id}}
            self._enter(_open_transaction(run.name, _trace_headers(run), sampling))
            self._enter(_open_span("queue.process", run.name, _attributes(run)))

    def _enter(self, manager: AbstractContextManager[Any]) -> Any:
        entered = manager.__enter__()
        self._open.append(manager)
        return entered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = None if error is None else self._failure(error)
        if failure is not None:
            with suppress(BaseException), capture_internal_exceptions():  # methods of the error may raise any exception
                self._report(failure)
        leaving = (None, None, None) if failure is None else (type(failure), failure, trace)
        for manager in reversed(self._open):
            _leave(manager, leaving)

    def _failure(self, error: BaseException) -> BaseException | None:
        """Return the error to report; None if there is none. For a coroutine that was canceled at its time limit, return
        the error of the time limit instead of the cancellation.
        """
        error = replace_cancellation(error)
        if is_a(error, Retry) and _next_step(self._run, error) is NextStep.FAIL:
            return error
        return None if is_a(error, CONTROL_FLOW) else error

    def _report(self, error: BaseException) -> None:
        is_retried = _next_step(self._run, error) is NextStep.RETRY
        if is_retried and not self._integration.report_retried:
            return
        event, hint = event_from_exception(
            (type(error), error, _own_frames(get_traceback(error), self._run.name)),
            client_options=sentry_sdk.get_client().options,
            mechanism={"type": "fairque", "handled": False},
        )
        event["level"] = "warning" if is_retried else "error"
        # A time limit interrupts a task at any line, so the stack frames do not distinguish problems.
        by = "SoftTimeLimitExceeded" if is_a(error, TaskTimeoutError) else "{{ default }}"
        event["fingerprint"] = [by, self._run.name]
        sentry_sdk.capture_event(event, hint=hint)
        for task in self._run.tasks:
            reported.add(task.id, is_final=not is_retried)


def _leave(manager: AbstractContextManager[Any], error: tuple[Any, Any, Any]) -> None:
    with suppress(BaseException), capture_internal_exceptions():
        manager.__exit__(*error)


def describe_task(scope: Scope, name: str, queue: str, user: str | None) -> None:
    """Add the task's name, queue and user to a Sentry scope. ``user`` is None if the user must not appear."""
    scope.set_transaction_name(name, source=TransactionSource.TASK)
    scope.set_tag("fairque.task", name)
    scope.set_tag("fairque.queue", queue)
    if user is not None:
        scope.set_tag("fairque.user_id", user)
        scope.set_user({"id": user})


def _facts(run: TaskRun) -> dict[str, Any]:
    """Return the data about a run that a Sentry event contains. Arguments are left out, as in log lines."""
    if len(run.tasks) > 1:
        return {
            "queue": run.queue,
            "tasks": len(run.tasks),
            "task_ids": [task.id for task in run.tasks[:MAX_NAMED_TASKS]],
        }
    facts = {
        "queue": run.queue,
        "task_id": run.task.id,
        "attempt": run.task.attempt,
        "retries_left": run.task.retries_left,
    }
    return facts | ({"run_id": run.task.run_id} if run.task.run_id else {})


def _attributes(run: TaskRun) -> dict[str, Any]:
    attributes: dict[str, Any] = {"messaging.system": "fairque", "messaging.destination.name": run.queue}
    task = run.task
    if len(run.tasks) == 1:
        attributes["messaging.message.id"] = task.id
        attributes["messaging.message.body.size"] = len(task.payload_bytes)
        attributes["messaging.message.retry.count"] = task.attempt - 1
    else:
        attributes["messaging.batch.message_count"] = len(run.tasks)
    if ready_at := min(task.ready_at for task in run.tasks):
        attributes["messaging.message.receive.latency"] = max(0.0, time.time() - ready_at) * 1000
    return attributes


def _trace_headers(run: TaskRun) -> dict[str, str]:
    """Return the trace headers of Sentry. If the code that enqueued the task sent only a W3C trace, return headers for
    that trace.
    """
    headers = run.headers
    if TRACE_HEADER not in headers and len({task.trace for task in run.tasks}) == 1 and run.task.trace.parent:
        headers[TRACE_HEADER] = f"{run.task.trace.id}-{run.task.trace.span_id}"
    return headers


def _next_step(run: TaskRun, error: BaseException) -> NextStep:
    """Return the next step after the error. A batch is retried if any of its tasks is retried."""
    from django_fairque.tasks import registry

    return decide_next_step(error, registry.find(run.name), max(task.retries_left for task in run.tasks))


def _own_frames(trace: TracebackType | None, name: str) -> TracebackType | None:
    """Return the part of the traceback from the task's function on. The calls before it belong to this package, and on
    Python 3.10 also to middleware.
    """
    from django_fairque.tasks import registry

    definition = registry.find(name)
    code = getattr(definition and definition.function, "__code__", None)
    first = trace
    while first is not None and first.tb_frame.f_code is not code:
        first = first.tb_next
    return first or trace


# --- log lines of the worker ---


class _ReportedFailures:
    """The tasks whose last failure was reported to Sentry. A task is remembered until the worker logs the failure.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._is_final: dict[str, bool] = {}
        self._lock = threading.Lock()

    def add(self, task_id: str, *, is_final: bool) -> None:
        with self._lock:
            self._is_final[task_id] = is_final
            while len(self._is_final) > MAX_REPORTED_FAILURES:
                del self._is_final[next(iter(self._is_final))]

    def take(self, task_id: str, action: str) -> bool:
        """Return whether the failure that ended in ``action`` was reported to Sentry, and forget it."""
        with self._lock:
            is_final = self._is_final.pop(task_id, None)
        return is_final is not None and (is_final or action != "dead")


reported = _ReportedFailures()


def _process_log_event(event: Any, hint: dict[str, Any]) -> Any:
    """Drop the Sentry event of a log line if the failure was already reported with its stack frames. Add the task's
    data to the events of other log lines about tasks.
    """
    record: LogRecord | None = hint.get("log_record")
    integration = _integration()
    if record is None or integration is None or record.name.partition(".")[0] != "django_fairque":
        return event
    _drop_breadcrumbs_of_tasks(event)
    facts = vars(record)
    task_id, action = facts.get("task_id"), facts.get("action")
    if task_id is None or action is None:
        return event
    if action == "ending" or reported.take(task_id, action):
        return None
    name, user = facts["task_name"], integration.user_name(facts["user_id"])
    event["transaction"] = name
    event["fingerprint"] = ["fairque", name, facts["error_type"]]
    tags = event.setdefault("tags", {})
    tags["fairque.task"] = name
    if user is not None:
        tags["fairque.user_id"] = user
        event["user"] = {"id": user}
    if user != facts["user_id"]:
        event["extra"].pop("user_id", None)
        text = record.getMessage().replace(f" of user {printable(facts['user_id'])}", "")
        event["logentry"] = {"message": text, "formatted": text, "params": []}
    return event


def _drop_breadcrumbs_of_tasks(event: Any) -> None:
    """Remove breadcrumbs of log lines about tasks, because the thread that logs has breadcrumbs of the tasks of all
    users.
    """
    crumbs = event.get("breadcrumbs")
    if isinstance(crumbs, dict):
        crumbs["values"] = [crumb for crumb in crumbs.get("values", ()) if "task_id" not in (crumb.get("data") or {})]
