"""The configuration: its sections, the sources it is read from, and the queues and clients made from it.

Modules are imported when they are first used, so that a web process that enqueues nothing loads none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.conf.sections import MonitorConfig, WorkerConfig
    from django_fairque.engine.model.options import QueueConfig

    from .current import get_config, reset_config, set_overrides
    from .models import FairQueueConfig
    from .queues import aclose_queues, aget_queue, close_queues, get_queue
    from .redis import RedisConfig, SentinelConfig

__all__ = [
    "FairQueueConfig",
    "MonitorConfig",
    "QueueConfig",
    "RedisConfig",
    "SentinelConfig",
    "WorkerConfig",
    "aclose_queues",
    "aget_queue",
    "close_queues",
    "get_config",
    "get_queue",
    "reset_config",
    "set_overrides",
]

_MODULES = {
    "current": ("get_config", "reset_config", "set_overrides"),
    "models": ("FairQueueConfig", "QueueConfig"),
    "queues": ("aclose_queues", "aget_queue", "close_queues", "get_queue"),
    "redis": ("RedisConfig", "SentinelConfig"),
    "sections": ("MonitorConfig", "WorkerConfig"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # or every name would be there for a type checker

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value  # the next use is as fast as of any module
        return value


def __dir__() -> list[str]:
    return __all__
