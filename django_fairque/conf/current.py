"""The configuration of this process: read when it is first used, and kept until a setting changes."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import ConfigurationError

from .models import FairQueueConfig, load
from .sources import NO_SERVER_URL, WATCHED_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class _Current:
    def __init__(self) -> None:
        self.config: FairQueueConfig | None = None
        self.signing = ""
        self.overrides: Mapping[str, Any] = {}
        self.needing_no_server = 0
        self.on_reset: list[Callable[[], None]] = []
        self.renew_lock()

    def renew_lock(self) -> None:
        """Make the lock; again in a forked child, where a thread that exists only in the parent may hold it."""
        self.lock = threading.RLock()

    def load(self) -> FairQueueConfig:
        from django.core.signals import setting_changed

        with self.lock:
            if self.config is None:
                setting_changed.connect(_setting_changed, dispatch_uid="django_fairque.conf")
                self.config = load(FairQueueConfig, self.overrides, needs_server=not self.needing_no_server)
            return self.config


_current = _Current()
os.register_at_fork(after_in_child=_current.renew_lock)


def get_config(overrides: Mapping[str, Any] | None = None) -> FairQueueConfig:
    """Return the configuration of this process.

    ``overrides`` are options that take precedence over all sources, nested as in settings, for the result of this call
    only; none by default. `set_overrides` makes them last. Raises `ConfigurationError` with every mistake in all
    sources.
    """
    if overrides:
        return load(FairQueueConfig, _current.overrides, overrides)
    return _current.config or _current.load()


def set_overrides(overrides: Mapping[str, Any]) -> None:
    """Let options take precedence over all sources in this process from now on: those of a command line.

    ``overrides`` are nested as in settings. They replace those of an earlier call.
    """
    with _current.lock:
        _current.overrides = dict(overrides)
    reset_config()


def reset_config() -> None:
    """Forget the configuration, and close the clients made from it. Both are made again when they are used next."""
    with _current.lock:
        _current.config, _current.signing = None, ""
    for callback in _current.on_reset:
        callback()


def signing_mode() -> str:
    """``SIGNING``: on, off or verify-only; on where there is no valid configuration, and a queue was made without it."""
    mode = _current.signing
    if not mode:
        try:
            mode = get_config().signing
        except ConfigurationError:
            mode = "on"
        _current.signing = mode
    return mode


def signing_key() -> str | None:
    """The key that signs what this process pushes: ``SECRET_KEY``; None if ``SIGNING`` is off."""
    from django.conf import settings

    return None if signing_mode() == "off" else settings.SECRET_KEY


@contextmanager
def needing_no_server() -> Iterator[None]:
    """Allow that no server is configured, for a block that sends nothing (in tests, where `DEBUG` is false).

    A server that is named stays what it is.
    """
    with _current.lock:
        _current.needing_no_server += 1
    try:
        yield
    finally:
        with _current.lock:
            _current.needing_no_server -= 1
            made_up = _current.config is not None and _current.config.redis.url == NO_SERVER_URL
        if made_up and not _current.needing_no_server:
            reset_config()


def on_reset(callback: Callable[[], None]) -> None:
    """Call ``callback`` whenever the configuration is forgotten."""
    _current.on_reset.append(callback)


def _setting_changed(*, setting: str, **_: Any) -> None:
    if setting in WATCHED_SETTINGS:
        reset_config()
