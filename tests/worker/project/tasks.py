"""The tasks. Each start is recorded in the list `started`, so that tests can count the starts of a task."""

from __future__ import annotations

import asyncio
import faulthandler
import importlib.util
import logging
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_fairque import Concurrency, signals
from django_fairque.conf import get_queue
from django_fairque.tasks.context import current_task
from django_fairque.tasks.errors import Discard, Retry, SoftTimeLimitExceeded
from django_fairque.tasks.execution import BatchResult
from django_fairque.tasks.registry import task
from tests.hostile import hostile_classes

if "TEST_BREAK_CHILDREN" in os.environ and multiprocessing.parent_process() is not None:
    raise RuntimeError("this module can't be imported in a worker's child")

if after := os.environ.get("TEST_STALLED_AFTER"):  # so that a test sees many stalls in a short time
    from django_fairque.worker.supervisor import child_process as stalls
    from django_fairque.worker.supervisor import supervisor

    stalls.STALLED_SECONDS = float(after)
    stalls.STALL_REPEAT_SECONDS = supervisor.SUPERVISOR_TICK_SECONDS = 0.02

STARTED = "tests:started"
ENDED = "tests:ended"


def record(where: str, text: object = "") -> None:
    get_queue().client.execute_command("RPUSH", where, f"{current_task().id} {os.getpid()} {text}")


@task(name="noop")
def noop(*args: Any) -> None:
    """Nothing."""


@task(name="add")
def add(left: int, right: int) -> int:
    return left + right


@task(name="add_async")
async def add_async(left: int, right: int) -> int:
    await asyncio.sleep(0.001)
    return left + right


@task(name="count_me")
def count_me(number: int) -> None:
    record(STARTED, number)


@task(name="nap")
def nap(seconds: float) -> None:
    """Sleep in short naps, so that it can be interrupted."""
    record(STARTED)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.005)
    record(ENDED)


def call_api(closes: int = 0) -> None:
    """Record how many of these run."""
    client: Any = get_queue().client
    record(STARTED, client.incr("tests:running"))
    time.sleep(0.01)
    if closes:
        current_task().close_limit("api", until=3600)
    client.decr("tests:running")


for name, options in {"call_api": {}, "call_api_alone": {"isolated": True}}.items():
    task(name=name, limits=[Concurrency("api", 2)], **options)(call_api)  # type: ignore[call-overload]


@task(name="waits_for")
def waits_for(path: str) -> None:
    """Run until there is a file."""
    record(STARTED)
    while not Path(path).exists():
        time.sleep(0.01)
    record(ENDED)


@task(name="nap_async")
async def nap_async(seconds: float) -> None:
    await asyncio.to_thread(record, STARTED)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(record, ENDED)


@task(name="nap_together", batch=5)
def nap_together(items: list[float]) -> None:
    end = time.monotonic() + max(items)
    while time.monotonic() < end:
        time.sleep(0.005)


@task(name="deaf")
def deaf(seconds: float) -> None:
    """Sleep in C, where no exception reaches."""
    record(STARTED)
    time.sleep(seconds)
    record(ENDED)


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # never returns


@task(name="deadlock")
def deadlock() -> None:
    """Wait in a function that the task calls."""
    wait_for_a_lock()


async def wait_for_an_event() -> None:
    await asyncio.wait_for(asyncio.Event().wait(), 600)


@task(name="awaits")
async def awaits() -> None:
    """Wait in a coroutine that the task awaits."""
    await wait_for_an_event()


@task(name="backtrack_later")
def backtrack_later(length: int) -> None:
    """Hold the interpreter lock after some seconds."""
    for _ in range(300):
        time.sleep(0.01)
    re.match(r"(a|a)+$", "a" * length + "b")


@task(name="hog")
def hog(digits: int) -> int:
    """Hold the interpreter lock in one long call."""
    record(STARTED)
    value = len(str(pow(3, digits)))
    record(ENDED)
    return value


@task(name="backtrack")
def backtrack(length: int) -> None:
    """Hold the interpreter lock in one regular expression; each character more doubles the time."""
    record(STARTED)
    re.match(r"(a|a)+$", "a" * length + "b")
    record(ENDED)


@task(name="backtrack_at_once")
def backtrack_at_once(length: int) -> None:
    """Hold the interpreter lock before anything else in the process gets it."""
    re.match(r"(a|a)+$", "a" * length + "b")


@task(name="forks")
def forks(seconds: float) -> None:
    """Make a copy of this process that goes on for so long, or returns from this function at once."""
    record(STARTED)
    if os.fork():
        return
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


@task(name="forks_async")
async def forks_async() -> None:
    await asyncio.to_thread(record, STARTED)
    os.fork()


@task(name="forks_in_thread")
async def forks_in_thread() -> None:
    await asyncio.to_thread(record, STARTED)
    await asyncio.to_thread(os.fork)


@task(name="forks_in_sync_code")
async def forks_in_sync_code() -> None:
    await asyncio.to_thread(record, STARTED)
    await sync_to_async(os.fork)()


@task(name="tidy_up")
def tidy_up() -> str:
    """Meet the soft limit and end in good order."""
    record(STARTED)
    try:
        while True:
            time.sleep(0.005)
    except SoftTimeLimitExceeded:
        return "tidied up"


@task(name="fails")
def fails(text: str) -> None:
    record(STARTED)
    raise ValueError(text)


@task(name="dies")
def dies() -> None:
    """End the process as a crash would."""
    record(STARTED)
    os._exit(11)


@task(name="ends_parent")
def ends_parent() -> None:
    """End the process that has started this one, and with it all that it has started."""
    record(STARTED)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@task(name="damages_process")
def damages_process(how: str) -> None:
    """Leave the process with a clock that is wrong, or without memory for another thread."""
    if how == "constant clock":
        time.monotonic = lambda: 0.0
    elif how == "raising clock":
        time.monotonic = lambda: 1 / 0
    else:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), hard))


@task(name="eats")
def eats(megabytes: int) -> None:
    record(STARTED)
    HOARD.append(b"x" * megabytes * 2**20)


HOARD: list[bytes] = []


@task(name="later")
def later() -> None:
    record(STARTED)
    if len(get_queue().client.execute_command("LRANGE", STARTED, 0, -1)) < 3:
        raise Retry(0.01, "not yet")


@task(name="unwanted")
def unwanted() -> None:
    raise Discard("nobody wants it")


@task(name="whoami")
def whoami() -> int:
    return os.getpid()


@task(name="index", batch=20, batch_wait=0.2)
def index(items: list[int]) -> BatchResult:
    result = BatchResult(items)
    for position, item in enumerate(items):
        if item % 10 == 7:
            result.fail(position, ValueError("seven"))
        else:
            result.ok(position, {"item": item, "of": len(items)})
    return result


@task(name="query")
def query() -> list[int]:
    """Use the database; tells whether this thread's connection was closed before."""
    was_open = connection.connection is not None
    with connection.cursor() as cursor:
        cursor.execute("SELECT 42")
        (value,) = cursor.fetchone()
    return [value, int(was_open)]


@task(name="query_async")
async def query_async() -> list[int]:
    return await sync_to_async(query)()


@task(name="leaves_open")
def leaves_open() -> None:
    """Begin a transaction and forget it."""
    transaction.atomic().__enter__()


@task(name="spawns")
def spawns(depth: int) -> None:
    """Enqueue more while it runs."""
    if depth:
        spawns.using(user_id="spawner").enqueue(depth - 1)


@task(name="leaves_a_thread")
def leaves_a_thread() -> None:
    """Start a thread that never ends, and that Python waits for at exit."""
    threading.Thread(target=threading.Event().wait, daemon=False).start()


@task(name="nap_local")
def nap_local(seconds: float) -> None:
    """Sleep without asking the server anything."""
    time.sleep(seconds)


ALERTS = "tests:alerts"


def receive(signal: Any, sender: str, alert: Any, **_: Any) -> None:
    get_queue().client.execute_command("RPUSH", ALERTS, f"signal {alert.kind} {sender} {alert.task_id} {os.getpid()}")


def broken_receiver(**_: Any) -> None:
    raise RuntimeError("this receiver is broken")


for alert_signal in (signals.sla_at_risk, signals.sla_violated, signals.task_promoted):
    alert_signal.connect(broken_receiver)
    alert_signal.connect(receive)


def receive_end(signal: Any, task: Any, queue: str, took: float, error: str, **_: Any) -> None:
    name = next(name for name in signals.__all__ if getattr(signals, name) is signal)
    text = f"{name} {queue} {task.task_id} {took > 0} {error}"
    get_queue().client.execute_command("RPUSH", ALERTS, text)


if "TEST_HEAR_ENDS" in os.environ:
    for end_signal in (signals.task_failed, signals.task_retried, signals.task_dead):
        end_signal.connect(receive_end)


@task(name="portrait")
def portrait() -> dict[str, Any]:
    """Return the properties of the process that a task can see."""
    record(STARTED)
    time.sleep(0.3)  # so that another process gets the next one
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "process": multiprocessing.current_process().name,
        "chance": random.random(),
        "argv": sys.argv,
        "settings": os.environ["DJANGO_SETTINGS_MODULE"],
        "directory": str(Path.cwd()),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)],
        "switch": sys.getswitchinterval(),
        "faulthandler": faulthandler.is_enabled(),
        "handlers": [str(type(handler)) for handler in logging.getLogger("django_fairque").handlers],
        "level": logging.getLogger("django_fairque").level,
    }


if path := os.environ.get("TEST_MORE_TASKS"):  # a file of the test's own
    _spec = importlib.util.spec_from_file_location("more_tasks", path)
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules["more_tasks"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["more_tasks"])

if "TEST_NEWER_VERSION" in os.environ:

    @task(name="brand_new")
    def brand_new() -> str:
        """Not in the project's version before."""
        return "done"


async def _exit() -> None:
    sys.exit("a coroutine ended its event loop")


@task(name="exits_in_gather")
async def exits_in_gather() -> None:
    await asyncio.to_thread(record, STARTED)
    await asyncio.gather(_exit(), asyncio.sleep(60))


@task(name="exits_in_callback")
async def exits_in_callback() -> None:
    """Let a callback end the event loop, and wait for it."""
    asyncio.get_running_loop().call_soon(sys.exit)
    await asyncio.sleep(0.1)


@task(name="stops_loop")
async def stops_loop() -> None:
    await asyncio.to_thread(record, STARTED)
    asyncio.get_running_loop().stop()


@task(name="shuts_executor")
async def shuts_executor() -> None:
    """Shut the thread pool down that all coroutines of the loop use."""
    await asyncio.get_running_loop().shutdown_default_executor()


@task(name="breaks_loop")
async def breaks_loop() -> None:
    """Break the event loop, so that it can't run on."""
    await asyncio.to_thread(record, STARTED)
    loop: Any = asyncio.get_running_loop()
    loop._selector.close()
    await asyncio.sleep(60)


async def _block(seconds: float, until: str) -> None:
    record(STARTED)  # not in a thread: then others could begin on the loop before it is blocked
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (until and os.path.exists(until)):  # noqa: ASYNC240, PTH110 - on purpose
        time.sleep(0.02)  # noqa: ASYNC251 - on purpose


@task(name="blocks_loop")
async def blocks_loop(seconds: float, until: str = "") -> None:
    """Block the event loop for so long, or until there is a file."""
    await _block(seconds, until)


@task(name="blocks_in_background")
async def blocks_in_background(seconds: float, until: str = "") -> None:
    """Block the event loop in a coroutine that it has started."""
    await asyncio.create_task(_block(seconds, until))


@task(name="blocks_loop_before_another")
async def blocks_loop_before_another(seconds: float, until: str) -> None:
    """Wait until another coroutine is on the event loop, and block the loop before the first step of that coroutine."""
    record(STARTED)
    while len(asyncio.all_tasks()) < 2:  # noqa: ASYNC110 - an event would come a step too late
        await asyncio.sleep(0)
    await _block(seconds, until)


@task(name="cancels_all")
async def cancels_all() -> None:
    await asyncio.to_thread(record, STARTED)
    for running in asyncio.all_tasks():
        running.cancel()
    await asyncio.sleep(1)


@task(name="gathers")
async def gathers(seconds: float) -> None:
    """Create asyncio tasks and wait for them."""
    await asyncio.to_thread(record, STARTED)
    await asyncio.gather(asyncio.sleep(seconds), asyncio.sleep(seconds))


@task(name="nap_lightly")
async def nap_lightly(seconds: float) -> None:
    """Sleep on the event loop, without asking the server anything."""
    await asyncio.sleep(seconds)


@task(name="nap_then_fail")
def nap_then_fail(seconds: float) -> None:
    record(STARTED)
    time.sleep(seconds)
    raise ValueError("it ran to its end")


@task(name="gather", batch=50)
def gather(items: list[float]) -> None:
    """A call of many items takes as long as its first one says."""
    record(STARTED, len(items))
    time.sleep(items[0])


@task(name="gather_async", batch=50)
async def gather_async(items: list[float]) -> None:
    await sync_to_async(record)(STARTED, len(items))
    await asyncio.sleep(items[0])


@task(name="asks_again")
def asks_again() -> None:
    """Never content."""
    record(STARTED)
    raise Retry(0, "not yet")


@task(name="isolated_nap", isolated=True)
def isolated_nap(seconds: float) -> None:
    nap.function(seconds)


@task(name="talks", capture_logs=True)
def talks(seconds: float) -> None:
    logging.getLogger("tests.worker.project").warning("talks")
    nap.function(seconds)


@task(name="hungry", max_memory="200MB")
def hungry() -> None:
    """Take more memory bit by bit."""
    record(STARTED)
    some = []
    while True:
        some.append(b"x" * 10 * 2**20)
        time.sleep(0.02)


@task(name="greedy", max_memory="200MB")
def greedy() -> int:
    """Take more memory at once."""
    record(STARTED)
    return len(bytearray(10 * 2**30))


@task(name="append")
def append(path: str, seconds: float = 0.0) -> None:
    """Sleep, and write a line with the task's id, the process and the processor time that it has used."""
    time.sleep(seconds)
    with Path(path).open("a") as file:
        file.write(f"{current_task().id} {os.getpid()} {time.process_time()}\n")


@task(name="append_async")
async def append_async(path: str) -> None:
    append(path)


@task(name="fail_and_append")
def fail_and_append(path: str) -> None:
    append(path)
    raise ValueError(path)


@task(name="hostile")
def hostile(index: int, *, returns: bool = False) -> Any:
    """Raise, or return, an object of which special methods raise."""
    value = list(hostile_classes())[index]("refused")
    if returns:
        return value
    raise value


@task(name="hostile_async")
async def hostile_async(index: int, *, returns: bool = False) -> Any:
    asyncio.get_running_loop().call_soon(hostile.function, index)
    await asyncio.sleep(0)
    return hostile.function(index, returns=returns)


@task(name="hostile_log", capture_logs=True)
def hostile_log(index: int) -> None:
    logging.getLogger("tests.worker.project").info("%s", list(hostile_classes())[index]("refused"))
    hostile.function(index)


class Unreadable:
    """Its values are sent as text, and can't be read again in a worker."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema

        serialization = core_schema.plain_serializer_function_ser_schema(str)
        return core_schema.no_info_plain_validator_function(cls._read, serialization=serialization)

    @staticmethod
    def _read(_value: Any) -> Any:
        raise SystemExit("a validator raised this")


@task(name="unreadable")
def unreadable(value: Unreadable) -> None:
    record(STARTED, value)
