"""Reads every declared queue within a limited time, to answer health probes and scrapes of metrics.

A probe opens separate connections with short time-outs, so that it finds the state that a new connection would find,
and never waits for a busy connection. A separate thread runs the probe, because time-outs do not limit requests to name
servers and sentinels. Requests during a run share its answer, so a server that hangs occupies only one thread, and not
one thread for each request. The texts of errors are written by this package, because the texts of redis-py contain host
names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # not the built-in error before Python 3.11
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from django_fairque.conf import FairQueueConfig, get_config
from django_fairque.conf.redis import close_client
from django_fairque.engine.model.errors import (
    ConfigurationError,
    FairQueueError,
    RedisConnectionError,
    ServerRefusedError,
    UnsupportedServerError,
)
from django_fairque.engine.model.ids import PerProcess
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.safely import get_logger

logger = get_logger("django_fairque.monitoring")

T = TypeVar("T")

ANSWER_TIMEOUT_SECONDS = 1.0
"""Maximum seconds for one answer of the server, and for opening a connection to it."""
PROBE_TIMEOUT_SECONDS = 1.5
"""Maximum seconds in which a probe reads all queues."""

TIMED_OUT = "the server did not answer in time"
UNREACHABLE = "the server can't be reached"
REFUSED = "the server refuses work"
UNSUITABLE = "the server is too old, or set up to throw tasks away"
MISCONFIGURED = "the configuration has mistakes; manage.py check lists them"
UNREADABLE = "the queue can't be read; the log says why"


@dataclass(frozen=True)
class ProbeResult(Generic[T]):
    """The figures of each queue, or the reason why a queue could not be read. Contains no secrets."""

    readings: dict[str, T] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    is_slow: bool = False
    """Whether the read did not end in time although the server has answered since it began."""


@dataclass
class _CurrentRead(Generic[T]):
    config: FairQueueConfig
    future: Future[ProbeResult[T]] = field(default_factory=Future)
    has_answer: bool = False
    """Whether the server has answered since the read began."""


class _ProbeState(Generic[T]):
    """The state of a probe in one process. Its thread exists only in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.under_way: _CurrentRead[T] | None = None
        self.kept: tuple[FairQueueConfig, float, ProbeResult[T]] | None = None
        self.logged: dict[str, str] = {}


class Probe(Generic[T]):
    """Reads figures of every declared queue. A process has one probe for each kind of figures. Thread-safe.

    Args:
        read: reads the figures of one queue. The function must only read, and must neither repeat commands nor wait.
        keep_seconds: seconds for which a result is reused; by default each call of `read` reads the queues again.
        read_together: reads all queues in fewer round trips, and yields the figures of one queue after the other. By
            default ``read`` is called for each queue.
        shared_client: returns the client to use, which stays open. By default a probe opens new connections each time.
    """

    def __init__(
        self,
        read: Callable[[FairQueue], T],
        keep_seconds: float = 0.0,
        read_together: Callable[[Sequence[FairQueue]], Iterable[T]] | None = None,
        shared_client: Callable[[], Any] | None = None,
    ) -> None:
        self._shared_client = shared_client
        self._read = read_together or partial(map, read)
        self.keep_seconds = keep_seconds
        self._states: PerProcess[_ProbeState[T]] = PerProcess(_ProbeState)

    def forget(self) -> None:
        """Drop the stored result: the next `read` reads the queues again."""
        self._states.take()

    def read(self, within: float = PROBE_TIMEOUT_SECONDS) -> ProbeResult[T]:
        """Read the queues, or wait for a read that is in progress. Never raises, and takes at most a little longer than
        ``within`` seconds.
        """
        try:
            config = get_config()
        except ConfigurationError as error:
            result: ProbeResult[T] = ProbeResult(troubles={"default": MISCONFIGURED})
            self._log_changes(result.troubles, error)
            return result
        if (kept := self._states.get().kept) and kept[0] is config and time.monotonic() - kept[1] < self.keep_seconds:
            return kept[2]
        current = self._current_read(config)
        try:
            return current.future.result(within)
        except FutureTimeoutError:
            result = ProbeResult(troubles=dict.fromkeys(config.queues, TIMED_OUT), is_slow=current.has_answer)
            self._log_changes(result.troubles, f"no answer within {within:g} s")
            return result

    def _current_read(self, config: FairQueueConfig) -> _CurrentRead[T]:
        state = self._states.get()
        with state.lock:
            if state.under_way is None or state.under_way.config is not config:
                current = _CurrentRead[T](config)
                threading.Thread(target=self._run, args=(state, current), name="fairque-probe", daemon=True).start()
                # set only after the thread has started: without a thread the future would never end
                state.under_way = current
            return state.under_way

    def _run(self, state: _ProbeState[T], current: _CurrentRead[T]) -> None:
        config = current.config
        result: ProbeResult[T] = ProbeResult()
        error: Exception | None = None
        try:
            shared = self._shared_client
            client = client_with_timeout(config, ANSWER_TIMEOUT_SECONDS) if shared is None else shared()
            try:
                queues = [queue_without_retries(config, client, name) for name in config.queues]
                if shared is None:
                    queues[0].is_paused()  # a short read, which shows whether the server answers
                    current.has_answer = True
                for queue, reading in zip(queues, self._read(queues), strict=True):
                    result.readings[queue.name] = reading
            finally:
                if shared is None:
                    close_client(client)
        except FairQueueError as failure:
            error = failure
        except Exception as failure:
            logger.exception("checking the queues failed unexpectedly")
            error = failure
        # All queues are on one server, so an error that ends the read of one queue would also end the read of the next
        # one.
        result.troubles.update((name, _words(error)) for name in config.queues if name not in result.readings)
        self._log_changes(result.troubles, error)
        state.kept = config, time.monotonic(), result
        with state.lock:
            if state.under_way is current:
                state.under_way = None  # later requests must read new figures
        current.future.set_result(result)

    def _log_changes(self, troubles: dict[str, str], why: object) -> None:
        """Log each change of the result once, because probes come every few seconds."""
        state = self._states.get()
        if troubles != state.logged:
            for name, words in troubles.items():
                if state.logged.get(name) != words:
                    reason = str(why)
                    logger.warning("queue %s: %s", name, reason if reason.startswith(words) else f"{words}: {reason}")
            if not troubles:
                logger.info("all queues can be read again")
            state.logged = dict(troubles)


def client_with_timeout(config: FairQueueConfig, seconds: float) -> Any:
    """Return a client that waits at most this long for an answer and for a connection."""
    names = ("socket_timeout", "socket_connect_timeout")
    update = {name: min(getattr(config.redis, name), seconds) for name in names}
    return config.redis.model_copy(update=update).create_redis_client()


def queue_without_retries(config: FairQueueConfig, client: Any, name: str) -> FairQueue:
    """Return a declared queue that does not repeat failed calls. Raises `ConfigurationError` if the queue is not
    declared.
    """
    return FairQueue(client, name, config.queue_config(name).model_copy(update={"request_timeout": 0.0}))


def _words(error: Exception | None) -> str:
    kinds = {
        UnsupportedServerError: UNSUITABLE,
        ConfigurationError: MISCONFIGURED,
        ServerRefusedError: REFUSED,
        RedisConnectionError: UNREACHABLE,
    }
    return next((words for kind, words in kinds.items() if isinstance(error, kind)), UNREADABLE)
