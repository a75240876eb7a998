"""A request of a tenant that enqueues all tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from django.http import HttpRequest, JsonResponse
from django.urls import path
from opentelemetry import baggage, context, trace

from . import tasks

if TYPE_CHECKING:
    from django_fairque import TaskResult


def tenant_of(request: HttpRequest) -> str:
    return request.GET["tenant"]


def order(request: HttpRequest) -> JsonResponse:
    """Enqueue the tasks. Returns their ids, and the request's trace in OpenTelemetry."""
    tenant = tenant_of(request)
    token = context.attach(baggage.set_baggage("plan", f"plan of {tenant}"))
    structlog.contextvars.bind_contextvars(request_id=f"request of {tenant}")
    try:
        with trace.get_tracer("project").start_as_current_span("order") as span:
            sent: dict[str, TaskResult] = {
                "fails": tasks.fails.enqueue(7),
                "fails_too": tasks.fails_too.enqueue(7),
                "afails": tasks.afails.enqueue(tenant),
                "leaves": tasks.leaves.enqueue(tenant, fail=False),
                "leaves and fails": tasks.leaves.enqueue(tenant, fail=True),
                "flaky": tasks.flaky.enqueue(),
                "asks for a retry": tasks.asks.enqueue("retry"),
                "asks for an end": tasks.asks.enqueue("discard"),
            }
            return JsonResponse(
                {
                    "otel_trace": f"{span.get_span_context().trace_id:032x}",
                    "tasks": {name: result.id for name, result in sent.items()},
                }
            )
    finally:
        context.detach(token)
        structlog.contextvars.clear_contextvars()


def overrun(_: HttpRequest) -> JsonResponse:
    return JsonResponse({"tasks": {"overruns": tasks.overruns.enqueue().id}})


urlpatterns = [path("order/", order), path("overrun/", overrun)]
