"""Views for load balancers, orchestrators and Prometheus. docs/reference/metrics-and-signals.md describes these views.

The views need no session, login or database. The views change nothing, and answer within two seconds even if the server
hangs. The responses contain no host names, because anybody who can reach a view may see its response.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import cache_control
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from django_fairque.conf import MonitorConfig, get_config
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.monitoring.health import judge_health, judged_together
from django_fairque.monitoring.probe import Probe
from django_fairque.web import metrics as access

health_probe = Probe(judge_health, read_together=judged_together)


def probe(view: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Decorate a view: allow GET and HEAD only, and use no cache, login or database transaction."""
    wrapped = csrf_exempt(cache_control(no_store=True)(require_safe(view)))
    return wraps(view)(non_atomic_requests(login_not_required(wrapped)))


@probe
def live(_: HttpRequest) -> HttpResponse:
    """Answer that this process responds. No request is sent to the queue's server, because restarting this process
    would not repair the server.
    """
    return JsonResponse({"status": "live"})


@probe
def ready(request: HttpRequest) -> HttpResponse:
    """Return 200 if tasks can be enqueued, otherwise 503. A client with a token also gets the status of each queue,
    with the reasons for it.
    """
    monitor = _monitor()
    token = access.bearer(request.headers.get("Authorization", ""))
    is_known = access.is_known(token, monitor)
    if token and monitor.token and not is_known:
        return _response(access.UNAUTHORIZED)  # a client must notice that its token is wrong
    sight = health_probe.read()
    is_ready = not sight.troubles and all(health.status != "down" for health in sight.readings.values())
    content: dict[str, Any] = {"status": "ready" if is_ready else "not ready"}
    if is_known:
        queues = {name: {"status": health.status, "reasons": health.reasons} for name, health in sight.readings.items()}
        queues |= {name: {"status": "down", "reasons": [words]} for name, words in sight.troubles.items()}
        server = next((health.server for health in sight.readings.values()), {})
        content |= {"queues": queues, "server": server}
    return JsonResponse(content, status=200 if is_ready else 503)


@probe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the figures of all queues for Prometheus, to a client with a token; 404 while no token is configured."""
    headers = request.headers
    return _response(access.metrics(headers.get("Authorization", ""), headers.get("Accept", ""), is_open=False))


def _monitor() -> MonitorConfig:
    """Return the ``MONITOR`` section of the configuration. While the configuration has mistakes, return a section
    without tokens, so that no token is accepted.
    """
    try:
        return get_config().monitor
    except ConfigurationError:
        return MonitorConfig()


def _response(answer: access.MetricsResponse) -> HttpResponse:
    return HttpResponse(answer.content, status=answer.status, headers=dict(answer.headers))
