"""Tasks that leave state behind wherever a task can, and report what they find there. Loaded where ``TEST_MORE_TASKS`` names it.

Each task first looks at all carriers of state: whatever it finds, another task has left. Then, if it is acme's, it sets them
all, and leaves them set.
"""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import sentry_sdk
import structlog
from asgiref.sync import sync_to_async
from django.core.cache import cache
from django.db import connection, transaction
from django.urls import get_script_prefix, get_urlconf, set_script_prefix, set_urlconf
from django.utils import timezone, translation
from opentelemetry import baggage
from opentelemetry import context as otel
from sentry_sdk.integrations.threading import ThreadingIntegration
from sentry_sdk.transport import Transport

from django_fairque.conf import get_queue
from django_fairque.tasks.registry import task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LEAKS = "tests:leaks"
"""The key of the counts of values that another task had set, by kind of task and carrier."""
WRONG = "tests:wrong"
"""The key of the counts of tasks that did not find the value that they had set."""


class Carrier(NamedTuple):
    """Something in which state can pass from task to task. ``write`` sets it to a number that is the task's own."""

    name: str
    write: Callable[[int], Any]
    read: Callable[[], Any]
    clean: Any
    """The value that a task should read before it writes."""
    written: Callable[[int], Any]
    """Returns the value that a task should read after it has written this number."""


TENANT: contextvars.ContextVar[int | None] = contextvars.ContextVar("tenant", default=None)
LOGGED_TENANT: contextvars.ContextVar[int | None] = contextvars.ContextVar("logged_tenant", default=None)
VARIABLE = Carrier("context variable", TENANT.set, TENANT.get, None, lambda number: number)

# --- sentry-sdk ---


class _NoTransport(Transport):
    def capture_envelope(self, envelope: Any) -> None:
        """Send nothing."""


class _Captured(threading.local):
    event: Any = None


_captured = _Captured()


def _capture(event: Any, _: Any) -> None:
    _captured.event = event


sentry_sdk.init(
    dsn="https://key@localhost/1",
    transport=_NoTransport,
    before_send=_capture,
    default_integrations=False,  # the default ones make an event three times as expensive
    integrations=[ThreadingIntegration()],  # the integration carries scopes into threads
)


def _write_sentry(number: int) -> None:
    sentry_sdk.set_tag("tenant", number)
    sentry_sdk.set_user({"id": number})
    sentry_sdk.add_breadcrumb(category="tenant", message=str(number))


def _read_sentry() -> tuple[Any, Any, list[Any]]:
    """Send an event and return its tenant, its user and its breadcrumbs."""
    sentry_sdk.capture_message("hello")
    event = _captured.event
    crumbs = [crumb["message"] for crumb in event["breadcrumbs"]["values"] if crumb["category"] == "tenant"]
    return event.get("tags", {}).get("tenant"), event.get("user", {}).get("id"), crumbs


# --- logging ---


def _tag(record: logging.LogRecord) -> bool:
    record.tenant = LOGGED_TENANT.get()
    return True


_logger = logging.getLogger("tests.carriers")
_logger.addFilter(_tag)


def _read_log() -> Any:
    record = _logger.makeRecord(_logger.name, logging.INFO, __file__, 0, "hello", (), None)
    _logger.filter(record)
    return vars(record)["tenant"]


def _write_decimal(number: int) -> None:
    decimal.getcontext().prec = 100 + number  # changes the context in place, as most programs do


IN_CONTEXT = (
    VARIABLE,
    Carrier("language", lambda _: translation.activate("de"), translation.get_language, "en-us", lambda _: "de"),
    Carrier(
        "time zone",
        lambda _: timezone.activate(ZoneInfo("Asia/Tokyo")),
        timezone.get_current_timezone_name,
        "America/Chicago",
        lambda _: "Asia/Tokyo",
    ),
    Carrier("URLconf", lambda number: set_urlconf(f"urls{number}"), get_urlconf, None, lambda number: f"urls{number}"),
    Carrier(
        "script prefix",
        lambda number: set_script_prefix(f"/{number}/"),
        get_script_prefix,
        "/",
        lambda number: f"/{number}/",
    ),
    Carrier("decimal context", _write_decimal, lambda: decimal.getcontext().prec, 28, lambda number: 100 + number),
    Carrier(
        "structlog",
        lambda number: structlog.contextvars.bind_contextvars(tenant=number),
        structlog.contextvars.get_contextvars,
        {},
        lambda number: {"tenant": number},
    ),
    Carrier("Sentry", _write_sentry, _read_sentry, (None, None, []), lambda n: (n, n, [str(n)])),
    Carrier(
        "OpenTelemetry",
        lambda number: otel.attach(baggage.set_baggage("tenant", number)),
        lambda: baggage.get_baggage("tenant"),
        None,
        lambda number: number,
    ),
    Carrier("logging context", LOGGED_TENANT.set, _read_log, None, lambda number: number),
)

# --- the database connection ---


def _is_postgresql() -> bool:
    return connection.vendor == "postgresql"


def _write_session(number: int) -> None:
    """A setting of the connection that no transaction takes back."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET app.tenant = '{number}'" if _is_postgresql() else f"PRAGMA cache_size = {100 + number}")


def _read_session() -> int | None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('app.tenant', true)" if _is_postgresql() else "PRAGMA cache_size")
        (value,) = cursor.fetchone()
    if _is_postgresql():
        return int(value) if value else None
    return None if value == -2000 else value - 100


SESSION_VARIABLE = "session variable"
IN_CONNECTION = (
    Carrier(SESSION_VARIABLE, _write_session, _read_session, None, lambda number: number),
    Carrier(
        "autocommit",
        lambda _: connection.set_autocommit(autocommit=False),
        lambda: "on" if connection.get_autocommit() else "off",
        "on",
        lambda _: "off",
    ),
    Carrier(
        "open transaction",
        lambda _: transaction.atomic().__enter__(),
        lambda: "open" if connection.in_atomic_block else None,
        None,
        lambda _: "open",
    ),
)
"""In the order in which they can be set."""


def in_connection(number: int) -> Sequence[Carrier]:
    """The carriers that acme's task of this even number sets. A connection with an open transaction or without autocommit is
    closed anyway, so a third of the tasks leave neither."""
    return IN_CONNECTION[:1] + ((), IN_CONNECTION[1:2], IN_CONNECTION[2:])[number // 2 % 3]


def found(carriers: Sequence[Carrier]) -> list[str]:
    """The carriers that another task has set."""
    return [carrier.name for carrier in carriers if carrier.read() != carrier.clean]


def write(carriers: Sequence[Carrier], number: int) -> None:
    for carrier in carriers:
        carrier.write(number)


def lost(carriers: Sequence[Carrier], number: int) -> list[str]:
    """The carriers that don't hold what this task has written."""
    return [carrier.name for carrier in carriers if carrier.read() != carrier.written(number)]


def report(where: str, kind: str, names: Sequence[str]) -> None:
    for name in names:
        get_queue().client.execute_command("HINCRBY", where, f"{kind}: {name}", 1)


def _carry(kind: str, items: Sequence[tuple[str, int]]) -> None:
    report(LEAKS, kind, found([*IN_CONTEXT, *IN_CONNECTION]))
    for user, number in items:
        if user == "acme":
            mine = [*IN_CONTEXT, *in_connection(number)]
            write(mine, number)
            time.sleep(0)
            report(WRONG, kind, lost(mine, number))
            return


async def _acarry(kind: str, items: Sequence[tuple[str, int]]) -> None:
    report(LEAKS, kind, found(IN_CONTEXT) + await sync_to_async(found)(IN_CONNECTION))
    for user, number in items:
        if user == "acme":
            write(IN_CONTEXT, number)
            await sync_to_async(write)(in_connection(number), number)
            await asyncio.sleep(0.001)
            report(WRONG, kind, lost(IN_CONTEXT, number) + await sync_to_async(lost)(in_connection(number), number))
            return


@task(name="carry")
def carry(user: str, number: int) -> None:
    _carry("synchronous", [(user, number)])


@task(name="acarry")
async def acarry(user: str, number: int) -> None:
    await _acarry("asynchronous", [(user, number)])


@task(name="carry_batch", batch=4)
def carry_batch(items: list[tuple[str, int]]) -> None:
    _carry("batch", items)


@task(name="acarry_batch", batch=4)
async def acarry_batch(items: list[tuple[str, int]]) -> None:
    await _acarry("asynchronous batch", items)


# --- in the threads of the event loop, which the coroutines of all slots share ---


async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call it as ``asyncio.to_thread`` does, but without a copy of the task's context."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


@task(name="carry_in_thread")
async def carry_in_thread(user: str, number: int) -> None:
    report(LEAKS, "thread", await _in_thread(found, [*IN_CONTEXT, *IN_CONNECTION]))
    if user == "acme":
        await _in_thread(write, [*IN_CONTEXT, *in_connection(number)], number)
        report(LEAKS, "thread", await asyncio.to_thread(found, [*IN_CONTEXT, *IN_CONNECTION]))
        await asyncio.to_thread(write, in_connection(number), number)


# --- context variables alone, for many more tasks ---


def _leave(kind: str, user: str, number: int) -> None:
    report(LEAKS, kind, found([VARIABLE]))
    if user == "acme":
        VARIABLE.write(number)


@task(name="leave")
def leave(user: str, number: int) -> None:
    _leave("synchronous", user, number)


@task(name="aleave")
async def aleave(user: str, number: int) -> None:
    _leave("asynchronous", user, number)


@task(name="leave_batch", batch=10)
def leave_batch(items: list[tuple[str, int]]) -> None:
    report(LEAKS, "batch", found([VARIABLE]))
    VARIABLE.write(items[0][1])


@task(name="aleave_batch", batch=10)
async def aleave_batch(items: list[tuple[str, int]]) -> None:
    report(LEAKS, "asynchronous batch", found([VARIABLE]))
    VARIABLE.write(items[0][1])


# --- what passes from task to task ---


@task(name="use_cache")
def use_cache(number: int) -> None:
    cache.set("tests:cached", number)


@task(name="ause_cache")
async def ause_cache(number: int) -> None:
    await cache.aset("tests:cached", number)
    await sync_to_async(use_cache)(number)


# --- what a task's context holds does not outlive the task ---


class Large:
    """Counts how many of its kind there are."""

    alive = 0

    def __init__(self) -> None:
        Large.alive += 1

    def __del__(self) -> None:
        Large.alive -= 1


LARGE: contextvars.ContextVar[Large | None] = contextvars.ContextVar("large", default=None)


@task(name="hold")
def hold(fails: bool) -> int:
    """Return how many values there are that earlier tasks have left in a context variable, and leave one more."""
    alive = Large.alive
    LARGE.set(Large())
    if fails:
        raise ValueError(alive)
    return alive


@task(name="ahold")
async def ahold(fails: bool) -> int:
    return hold(fails)
