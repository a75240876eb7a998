"""The configuration of this process and its queues. The configuration is read at its first use and kept until a setting
changes.

`get_queue` and `aget_queue` keep one client for each process or event loop, and one object for each declared queue.

In a test run, no request is sent to the server in the settings: an `Interceptor` of `django_fairque.testing` captures
the tasks and replaces the queues.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from django_fairque.conf.sources import NO_SERVER_URL, WATCHED_SETTINGS
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.ids import PerProcess

from .models import FairQueueConfig, load
from .redis import aclose_client, close_client

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.async_queue import AsyncFairQueue
    from django_fairque.engine.queue.queue import FairQueue


class _Current:
    def __init__(self) -> None:
        self.config: FairQueueConfig | None = None
        self.signing = ""
        self.overrides: Mapping[str, Any] = {}
        self.test_interceptor: Interceptor | None = None
        """The interceptor of a test run; made at its first use."""
        self.on_reset: list[Callable[[], None]] = []
        self.installed_middleware: list[str] = []
        self.locks = PerProcess(threading.RLock)
        """One lock for each process, because in a forked process the parent's lock may be held by a thread that does
        not exist there."""

    def load(self) -> FairQueueConfig:
        from django.core.signals import setting_changed

        with self.locks.get():
            if self.config is None:
                setting_changed.connect(_setting_changed, dispatch_uid="django_fairque.conf")
                is_captured = bool(interceptors) and interceptors[-1] is not None
                config = self._load_without_server() or load(self.overrides, needs_server=not is_captured)
                if self.installed_middleware:
                    config = config.model_copy(update={"middleware": [*self.installed_middleware, *config.middleware]})
                self.config = config
            return self.config

    def _load_without_server(self) -> FairQueueConfig | None:
        """Load a configuration for a test run that connects to no server. Return None if tests may use the configured
        server.
        """
        if None in interceptors or not is_test_run():
            return None
        config = load(self.overrides, {"redis": {"url": NO_SERVER_URL}})
        return config if config.capture_in_tests else None


_current = _Current()


def get_config(overrides: Mapping[str, Any] | None = None) -> FairQueueConfig:
    """Return the configuration of this process.

    ``overrides`` are options that take precedence over all sources in the result of this call only. The options are
    nested as in settings; none by default. `set_overrides` sets overrides permanently. Raises `ConfigurationError` with
    every mistake in all sources.
    """
    if overrides:
        return load(_current.overrides, overrides)
    return _current.config or _current.load()


def set_overrides(overrides: Mapping[str, Any]) -> None:
    """Set options that take precedence over all sources in this process from now on, for example the options of a
    command line.

    ``overrides`` are nested as in settings. Options of an earlier call are removed.
    """
    with _current.locks.get():
        _current.overrides = dict(overrides)
    reset_config()


@contextmanager
def override_options(overrides: Mapping[str, Any]) -> Iterator[None]:
    """Set additional options that take precedence over all sources inside a ``with`` block."""
    before = _current.overrides
    set_overrides({**before, **overrides})
    try:
        yield
    finally:
        set_overrides(before)


def install_middleware(path: str) -> None:
    """Add a middleware around the middleware in the setting ``MIDDLEWARE``. If it was added before, nothing changes.
    For packages that a project sets up.

    ``path`` is the dotted path of the middleware.
    """
    if path not in _current.installed_middleware:
        _current.installed_middleware.append(path)
        reset_config()


def reset_config() -> None:
    """Forget the configuration, and close its clients. The configuration and the clients are made again when they are
    next used.
    """
    with _current.locks.get():
        _current.config, _current.signing = None, ""
    for callback in _current.on_reset:
        callback()


def signing_mode() -> str:
    """Return the setting ``SIGNING``: on, off or verify-only. If there is no valid configuration, as for queues that a
    program makes itself, the result is on.
    """
    mode = _current.signing
    if not mode:
        try:
            mode = get_config().signing
        except ConfigurationError:
            mode = "on"
        _current.signing = mode
    return mode


def signing_key() -> str | None:
    """Return the key that signs this process's tasks, ``SECRET_KEY``; None if ``SIGNING`` is off."""
    if signing_mode() == "off":
        return None
    from django.conf import settings

    return settings.SECRET_KEY


class Interceptor(Protocol):
    """An object that receives tasks instead of their queue (`django_fairque.testing.Capture`)."""

    def intercept(self, options: Any, tasks: Sequence[Task]) -> list[Any]:
        """Receive ``tasks`` that are sent with these ``options``. Returns a `TaskResult` for each task."""
        ...

    def queue(self, name: str) -> FairQueue:
        """Return the replacement for the queue of this ``name``."""
        ...

    def aqueue(self, name: str) -> AsyncFairQueue:
        """Return the replacement for the queue of this ``name`` in coroutines."""
        ...


interceptors: list[Interceptor | None] = []
"""The interceptors of the open `intercept_tasks` blocks. The last one receives the tasks; None for a block that may use
the configured server."""


@contextmanager
def intercept_tasks(interceptor: Interceptor | None) -> Iterator[None]:
    """Pass tasks to ``interceptor`` inside a ``with`` block, in all threads. With None, a test may use the configured
    server.
    """
    interceptors.append(interceptor)
    _forget_config(interceptor)
    try:
        yield
    finally:
        del interceptors[max(index for index, other in enumerate(interceptors) if other is interceptor)]
        _forget_config(interceptor)


def _forget_config(interceptor: Interceptor | None) -> None:
    """Reset the configuration if the server inside of the `intercept_tasks` block differs from the server outside."""
    is_without_server = _current.config is not None and _current.config.redis.url == NO_SERVER_URL
    if interceptor is None or (is_without_server and (None in interceptors or not is_test_run())):
        reset_config()


def current_interceptor() -> Interceptor | None:
    """Return the interceptor that currently receives tasks; None if tasks are sent to their queues."""
    if interceptors:
        return interceptors[-1]
    return _test_interceptor() if is_test_run() else None


def is_test_run() -> bool:
    """Return whether Django's `setup_test_environment` has prepared this process for tests, or pytest runs with the
    plugin of this package.

    The existence of ``mail.outbox`` is no proof, because a project may use the same mail backend outside of tests.
    """
    utils = sys.modules.get("django.test.utils")
    if utils is not None and hasattr(utils._TestState, "saved_data"):  # noqa: SLF001 - the only trace of a prepared test run
        return True
    plugin = sys.modules.get("django_fairque.testing.plugin")
    return plugin is not None and bool(plugin.is_running)


def _test_interceptor() -> Interceptor | None:
    """Return the interceptor of this test run; None if its tests may use the configured server."""
    if _current.test_interceptor is None:
        # Imported by its path, because a core module must not import the testing package. This import happens only in
        # test runs.
        from django.utils.module_loading import import_string

        _current.test_interceptor = import_string("django_fairque.testing.capture.begin_to_capture")()
        reset_config()  # a configuration that was loaded before the test run is not used
    return _current.test_interceptor if get_config().capture_in_tests else None


def _find_test_interceptor(name: str) -> Interceptor | None:
    """Return the interceptor that replaces this queue in a test run; None if the tests may use the configured
    server.
    """
    if None in interceptors or (found := _test_interceptor()) is None:
        return None
    get_config().queue_config(name)
    return interceptors[-1] if interceptors else found


def on_reset(callback: Callable[[], None]) -> None:
    """Call ``callback`` whenever the configuration is reset."""
    _current.on_reset.append(callback)


def _setting_changed(*, setting: str, **_: Any) -> None:
    if setting in WATCHED_SETTINGS:
        reset_config()


class _OpenClient:
    """A client and the queues that use it, made from one configuration."""

    def __init__(self, config: FairQueueConfig, client: Any, kind: Any) -> None:
        self.config = config
        self.client = client
        self._kind = kind
        self._queues: dict[str, Any] = {}

    def queue(self, name: str) -> Any:
        found = self._queues.get(name) if isinstance(name, str) else None
        if found is None:
            made = self._kind(self.client, name, self.config.queue_config(name))
            # if two threads make the queue at the same time, both get the first one
            found = self._queues.setdefault(name, made)
        return found


class _OpenClients:
    """The open clients of this process: one for all threads, and one for each event loop."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.opened: _OpenClient | None = None
        self.on_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _OpenClient] = WeakKeyDictionary()


_open_clients = PerProcess(_OpenClients)


def get_queue(name: str = "default") -> FairQueue:
    """Return a declared queue, the same object for all threads of the process.

    ``name`` is the queue's name, "default" by default. Raises `ConfigurationError` if the queue is not declared (the
    error suggests the most similar name), or if the configuration has mistakes. In a test run the result only captures
    the tasks that are pushed.
    """
    if is_test_run() and (stand_in := _find_test_interceptor(name)) is not None:
        return stand_in.queue(name)
    config, opened = get_config(), _open_clients.get().opened
    if opened is None or opened.config is not config:
        opened = _open(config)
    queue: FairQueue = opened.queue(name)
    return queue


def _open(config: FairQueueConfig) -> _OpenClient:
    from django_fairque.engine.queue.queue import FairQueue

    clients = _open_clients.get()
    with clients.lock:
        if clients.opened is None or clients.opened.config is not config:
            clients.opened = _OpenClient(config, config.redis.create_redis_client(), FairQueue)
        return clients.opened


async def aget_queue(name: str = "default") -> AsyncFairQueue:
    """Return a declared queue for coroutines, the same object for all tasks of the running event loop.

    ``name`` is the queue's name, "default" by default. Raises `ConfigurationError` in the same cases as `get_queue`.
    """
    if is_test_run() and (stand_in := _find_test_interceptor(name)) is not None:
        return stand_in.aqueue(name)
    config, loop = get_config(), asyncio.get_running_loop()
    opened = _open_clients.get().on_loops.get(loop)
    if opened is None or opened.config is not config:
        opened = await _open_client(loop, config)
    queue: AsyncFairQueue = opened.queue(name)
    return queue


async def _open_client(loop: asyncio.AbstractEventLoop, config: FairQueueConfig) -> _OpenClient:
    from django_fairque.engine.queue.async_queue import AsyncFairQueue

    opened = _OpenClient(config, config.redis.create_async_redis_client(), AsyncFairQueue)
    clients = _open_clients.get()
    with clients.lock:
        # An open connection refers to its event loop, so the garbage collector never removes a loop that ended without
        # aclose_queues().
        for closed in [known for known in clients.on_loops if known.is_closed()]:
            del clients.on_loops[closed]
        outdated = clients.on_loops.get(loop)
        clients.on_loops[loop] = opened  # set before the await, so that no other coroutine opens a client for this loop
    if outdated is not None:
        await aclose_client(outdated.client)
    return opened


def close_queues() -> None:
    """Close this process's client. The next call of `get_queue` makes a new client."""
    clients = _open_clients.get()
    with clients.lock:
        opened, clients.opened = clients.opened, None
    if opened is not None:
        close_client(opened.client)


async def aclose_queues() -> None:
    """Close the running event loop's client. Call this before the loop ends."""
    opened = _open_clients.get().on_loops.pop(asyncio.get_running_loop(), None)
    if opened is not None:
        await aclose_client(opened.client)


on_reset(close_queues)
