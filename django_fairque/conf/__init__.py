"""The configuration: its sections, its sources, and the queues and clients that are made from it.

Modules are imported when they are first used, so that a web process that enqueues nothing loads none of them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.engine.model.options import QueueConfig as QueueConfig

    from .current import aclose_queues as aclose_queues
    from .current import aget_queue as aget_queue
    from .current import close_queues as close_queues
    from .current import current_interceptor as current_interceptor
    from .current import get_config as get_config
    from .current import get_queue as get_queue
    from .current import reset_config as reset_config
    from .current import set_overrides as set_overrides
    from .models import FairQueueConfig as FairQueueConfig
    from .redis import RedisConfig as RedisConfig
    from .redis import SentinelConfig as SentinelConfig
    from .sections import MonitorConfig as MonitorConfig
    from .sections import WorkerConfig as WorkerConfig
else:
    from django_fairque.lazy import export_lazily

    _MODULES = {
        "current": "aclose_queues aget_queue close_queues current_interceptor get_config get_queue reset_config set_overrides",
        "models": "FairQueueConfig QueueConfig",
        "redis": "RedisConfig SentinelConfig",
        "sections": "MonitorConfig WorkerConfig",
    }
    __getattr__, __dir__, __all__ = export_lazily(__name__, _MODULES)
