"""Run the checks and print them as a table. Exit code 1 unless all of them pass.

Requests of two tenants enqueue the same tasks; a worker with two processes runs them. Then the data that
Sentry and OpenTelemetry received is compared with the expected data.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import uuid
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults

from tests.lab.observability.collector import Collector
from tests.servers import Server
from tests.worker.conftest import WorkerProcess, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque import TaskResult

TENANTS = ("acme", "globex")
TASKS = "tests.lab.observability.tasks."
FAILING = ("fails", "fails_too", "afails", "leaves and fails")
"""Tasks of a request that fail for good."""


class Observed:
    """The sent tasks, and the data that was collected about them."""

    def __init__(self, directory: Path, collector: Collector) -> None:
        self.collector = collector
        self._directory = directory
        self.requests: dict[str, dict[str, Any]] = {}
        """By tenant: the traces of its request, the ids of its tasks, and their results."""
        self.log = ""
        """The log of the worker."""
        self.overrun = ""
        """The id of the task that was ended with its process."""

    def __getitem__(self, tenant: str) -> dict[str, Any]:
        return self.requests[tenant]

    def event(self, tenant: str, name: str) -> dict[str, Any]:
        """The event about the error of a tenant's task, which must be the only one."""
        (event,) = (event for event in self.events_of(self.requests[tenant]["tasks"][name]) if "exception" in event)
        return event

    def events_of(self, task_id: str) -> list[dict[str, Any]]:
        def is_about(event: dict[str, Any]) -> bool:
            facts = {**event.get("extra", {}), **event.get("contexts", {}).get("fairque", {})}
            return bool(facts.get("task_id") == task_id)

        return [event for event in self.collector.events if is_about(event)]

    def spans(self, op: str, task_id: str) -> list[dict[str, Any]]:
        """Return Sentry's spans about a task, the earliest first."""
        spans = [
            span for transaction in self.collector.transactions for span in transaction["spans"] if span["op"] == op
        ]
        found = [span for span in spans if span["data"].get("messaging.message.id") == task_id]
        return sorted(found, key=lambda span: span["start_timestamp"])

    def _lines(self, kind: str) -> list[dict[str, Any]]:
        files = self._directory.glob(f"{kind}-*")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def otel_spans(self) -> list[dict[str, Any]]:
        return self._lines("spans")

    def points(self, metric: str) -> list[dict[str, Any]]:
        """The data points of a metric of OpenTelemetry, of all processes."""
        metrics = [
            candidate
            for line in self._lines("metrics")
            for resource in line["resource_metrics"]
            for scope in resource["scope_metrics"]
            for candidate in scope["metrics"]
        ]
        return [
            point for candidate in metrics if candidate["name"] == metric for point in candidate["data"]["data_points"]
        ]


# --- the checks: each raises AssertionError, or returns a few words about what it found ---


def exception_with_frames(seen: Observed) -> str:
    frames = []
    for tenant in TENANTS:
        for name in FAILING:
            (exception,) = seen.event(tenant, name)["exception"]["values"]
            assert exception["type"] == "ValueError", exception
            assert exception["value"].startswith("no credit"), exception
            assert exception["mechanism"] == {"type": "fairque", "handled": False}, exception
            frames = exception["stacktrace"]["frames"]
            own = [frame["function"] for frame in frames if frame["module"] == "tests.lab.observability.tasks"]
            assert own == [name.split()[0], "charge"], own
            assert frames[0]["function"] == own[0], frames
    return f"{frames[0]['function']} → {frames[-1]['function']}, line {frames[-1]['lineno']}"


def issue_per_task_and_error(seen: Observed) -> str:
    def issue(tenant: str, name: str) -> tuple[str, ...]:
        event = seen.event(tenant, name)
        frames = event["exception"]["values"][0]["stacktrace"]["frames"]
        return (*event["fingerprint"], event["transaction"], *(frame["function"] for frame in frames))

    issues = {name: {issue(tenant, name) for tenant in TENANTS} for name in FAILING}
    assert all(len(tags) == 1 for tags in issues.values()), issues
    assert len({next(iter(tags)) for tags in issues.values()}) == len(FAILING), issues
    (first,) = issues["fails"]
    assert first[:3] == ("{{ default }}", f"{TASKS}fails", f"{TASKS}fails"), first
    return f"{len(FAILING)} issues of {len(FAILING) * len(TENANTS)} failures"


def right_tenant(seen: Observed) -> str:
    for tenant in TENANTS:
        for name in (*FAILING, "flaky"):
            event = seen.event(tenant, name)
            assert event["user"] == {"id": tenant}, event["user"]
            assert event["tags"]["fairque.user_id"] == tenant, event["tags"]
            other = next(candidate for candidate in TENANTS if candidate != tenant)
            assert other not in json.dumps(event), f"{other} in an event of {tenant}"
    return "user, tag and nothing of the other"


def joined_trace(seen: Observed) -> str:
    for tenant in TENANTS:
        trace = seen[tenant]["sentry_trace"]
        for name in (*FAILING, "flaky"):
            assert seen.event(tenant, name)["contexts"]["trace"]["trace_id"] == trace, name
        ids = seen[tenant]["tasks"].values()
        traces = {
            span["trace_id"]
            for task_id in ids
            for op in ("queue.publish", "queue.process")
            for span in seen.spans(op, task_id)
        }
        assert traces == {trace}, traces
        spans = [
            (span["name"].split()[0], span["context"]["trace_id"])
            for span in seen.otel_spans()
            if span["attributes"].get("messaging.message.id") in seen[tenant]["tasks"].values()
        ]
        otel_trace = f"0x{seen[tenant]['otel_trace']}"
        assert set(spans) == {("enqueue", otel_trace), ("run", otel_trace)}, set(spans)
    return "request, sending, run, error"


def publish_attributes(seen: Observed) -> str:
    data = {}
    for tenant in TENANTS:
        for name, task_id in seen[tenant]["tasks"].items():
            (span,) = seen.spans("queue.publish", task_id)
            data = span["data"]
            assert data["messaging.destination.name"] == "default", data
            assert data["messaging.message.body.size"] > 20, data
            assert span["description"] == TASKS + name.split()[0], span
    return f"{data['messaging.message.body.size']} bytes"


def process_attributes(seen: Observed) -> str:
    latency = 0.0
    for tenant in TENANTS:
        retried = seen.spans("queue.process", seen[tenant]["tasks"]["flaky"])
        assert [span["data"]["messaging.message.retry.count"] for span in retried] == [0, 1], retried
        for task_id in seen[tenant]["tasks"].values():
            for span in seen.spans("queue.process", task_id):
                data = span["data"]
                latency = data["messaging.message.receive.latency"]
                assert 0 < latency < 60_000, data
                assert data["messaging.destination.name"] == "default", data
                assert data["messaging.message.body.size"] > 20, data
    return f"retries 0 and 1, latency {latency:.1f} ms"


def no_foreign_breadcrumb(seen: Observed) -> str:
    for tenant in TENANTS:
        for name in FAILING:
            event = seen.event(tenant, name)
            left = name in ("afails", "leaves and fails")
            crumbs = [crumb["message"] for crumb in event["breadcrumbs"]["values"] if crumb.get("category") == "who"]
            assert crumbs == [tenant] * left, (name, crumbs)
            assert event["tags"].get("who") == (tenant if left else None), (name, event["tags"])
    return "breadcrumbs and tags are the task's own"


def no_event_for_a_log_line(seen: Observed) -> str:
    ours = [event for event in seen.collector.events if event.get("logger", "").startswith("django_fairque")]
    kinds = Counter(event["transaction"] for event in ours)
    assert kinds == {f"{TASKS}overruns": 1}, [(event["logger"], event["logentry"]) for event in ours]
    expected = len(TENANTS) * (len(FAILING) + 1) + 1
    assert len(seen.collector.events) == expected, [event.get("transaction") for event in seen.collector.events]
    return f"{expected} events of {expected} failures"


def retry_is_no_error(seen: Observed) -> str:
    for tenant in TENANTS:
        for name in ("asks for a retry", "asks for an end"):
            assert seen.events_of(seen[tenant]["tasks"][name]) == [], name
            spans = seen.spans("queue.process", seen[tenant]["tasks"][name])
            assert len(spans) == (2 if name == "asks for a retry" else 1), spans
            assert {span.get("status", "ok") for span in spans} == {"ok"}, spans
        assert seen.event(tenant, "flaky")["level"] == "warning", "a failure that is tried again"
        assert seen.event(tenant, "fails")["level"] == "error"
    asking = [span for span in seen.otel_spans() if span["attributes"].get("fairque.task.asked_for")]
    assert {span["status"]["status_code"] for span in asking} == {"UNSET"}, asking
    return "Retry, Discard; a retried failure is a warning"


def ended_with_its_process(seen: Observed) -> str:
    (event,) = seen.events_of(seen.overrun)
    assert event["fingerprint"][:2] == ["fairque", f"{TASKS}overruns"], event
    assert event["fingerprint"][2].endswith("TaskTimeoutError"), event
    assert event["user"] == {"id": TENANTS[0]}, event
    assert TENANTS[1] not in json.dumps(event), event
    return str(event["fingerprint"][2]).rpartition(".")[2]


def metrics_with_attributes(seen: Observed) -> str:
    common = {
        "messaging.system": "fairque",
        "messaging.destination.name": "default",
        "fairque.task.name": f"{TASKS}fails",
    }
    totals = []
    for metric, operation, error in (
        ("messaging.client.sent.messages", "enqueue", None),
        ("messaging.client.operation.duration", "enqueue", None),
        ("messaging.client.consumed.messages", "run", "ValueError"),
        ("messaging.process.duration", "run", "ValueError"),
    ):
        wanted = {**common, "messaging.operation.name": operation} | ({"error.type": error} if error else {})
        points = [point for point in seen.points(metric) if wanted.items() <= point["attributes"].items()]
        assert points, (metric, [point["attributes"] for point in seen.points(metric)])
        totals.append(sum(point.get("value", point.get("count", 0)) for point in points))
        assert all("server.address" in point["attributes"] for point in points), points
    assert totals == [len(TENANTS)] * 4, totals
    return "4 instruments"


def baggage_and_structlog(seen: Observed) -> str:
    for tenant in TENANTS:
        result = seen[tenant]["results"]["leaves"]
        assert result["baggage"] == f"plan of {tenant}", result
        carried = {"request_id": f"request of {tenant}", "task_name": f"{TASKS}leaves"}
        assert result["structlog"] == {**carried, "task_id": seen[tenant]["tasks"]["leaves"]}, result
    return "those of the request, and none of another task"


CHECKS: dict[str, Callable[[Observed], str]] = {
    "an exception has its frames": exception_with_frames,
    "one issue per task and error": issue_per_task_and_error,
    "the right tenant": right_tenant,
    "one trace from the request on": joined_trace,
    "queue.publish has its attributes": publish_attributes,
    "queue.process has latency and retries": process_attributes,
    "no breadcrumb or tag of another tenant": no_foreign_breadcrumb,
    "a log line makes no second event": no_event_for_a_log_line,
    "Retry and Discard are no errors": retry_is_no_error,
    "a task ended with its process is reported": ended_with_its_process,
    "metrics have their attributes": metrics_with_attributes,
    "baggage and structlog's variables arrive": baggage_and_structlog,
}


def produce(seen: Observed) -> None:
    """Send the requests, each in a trace of Sentry."""
    import django

    django.setup()
    from django.core.wsgi import get_wsgi_application

    application = get_wsgi_application()

    def request(path: str, tenant: str, **headers: str) -> dict[str, Any]:
        """Call the project as a WSGI server does, so that sentry-sdk sees the request."""
        environ: dict[str, Any] = {"PATH_INFO": path, "QUERY_STRING": f"tenant={tenant}", **headers}
        setup_testing_defaults(environ)
        answer: Any = application(environ, lambda *_: None)
        content: dict[str, Any] = json.loads(b"".join(answer))
        answer.close()
        return content

    for tenant in TENANTS:
        trace = uuid.uuid4().hex
        answer = request("/order/", tenant, HTTP_SENTRY_TRACE=f"{trace}-{uuid.uuid4().hex[:16]}-1")
        seen.requests[tenant] = {"sentry_trace": trace, **answer}
    seen.overrun = request("/overrun/", TENANTS[0])["tasks"]["overruns"]


def observe(directory: Path) -> Observed:
    """Let the requests and a worker run, and return what was observed."""
    with Server() as server, Collector() as collector:
        environment = {
            "DJANGO_SETTINGS_MODULE": "tests.lab.observability.settings",
            "TEST_DSN": collector.dsn,
            "TEST_SERVER": server.url,
            "TEST_TELEMETRY": str(directory),
        }
        os.environ.update(environment)
        seen = Observed(directory, collector)
        produce(seen)
        worker = WorkerProcess(server, directory, "--processes", "1", "--concurrency", "4", **environment)
        try:
            wait_for_results(seen)
            code = worker.stop()
            assert code == 0, worker.log
        finally:
            with redirect_stdout(StringIO()):  # the worker writes its log to standard output
                worker.close()
            seen.log = worker.log
        end_telemetry()
    return seen


def wait_for_results(seen: Observed) -> None:
    """Wait until all tasks have ended, and the end of the last one is reported."""
    from django_fairque import TaskResult

    results = {
        task_id: TaskResult(task_id) for request in seen.requests.values() for task_id in request["tasks"].values()
    }
    results[seen.overrun] = TaskResult(seen.overrun)
    eventually(lambda: all(has_ended(result) for result in results.values()))
    for request in seen.requests.values():
        request["results"] = {"leaves": results[request["tasks"]["leaves"]].result()}
    eventually(lambda: seen.events_of(seen.overrun))


def has_ended(result: TaskResult) -> bool:
    from django_fairque import TaskState

    return result.state in (TaskState.FINISHED, TaskState.FAILED, TaskState.CANCELED)


def end_telemetry() -> None:
    """Send what this process, which stands for the one of the requests, has left."""
    import sentry_sdk
    from opentelemetry import metrics, trace

    from django_fairque.conf import close_queues

    close_queues()
    sentry_sdk.flush()
    providers: tuple[Any, Any] = (trace.get_tracer_provider(), metrics.get_meter_provider())
    for provider in providers:
        provider.shutdown()


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        seen = observe(Path(directory))
        failures = 0
        for name, check in CHECKS.items():
            try:
                verdict, words = "ok", check(seen)
            except Exception as error:  # noqa: BLE001 - a check that can't find what it looks for has failed
                failures += 1
                verdict, words = "FAILED", f"{type(error).__name__}: {error}"[:1000]
            print(f"| {name:<42} | {verdict:<6} | {words}")
    print(f"{len(CHECKS) - failures} of {len(CHECKS)} passed")
    if failures:
        print(f"The worker's log:\n{seen.log}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
