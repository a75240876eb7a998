"""A cluster's client that asks for the nodes when it is first used, as the one for coroutines does.

redis-py's asks when it is made, and raises if no node answers: a worker that starts before its servers could not even say that it
waits for them, and a web process whose queue is made at import could not start.
"""

from __future__ import annotations

import threading
from typing import Any

from redis.cluster import RedisCluster


class LazyRedisCluster(RedisCluster):
    """Made of the options of a `RedisCluster`. Thread-safe: who comes while another asks waits for what that one learns.

    As long as nobody has answered, each use asks again and raises what the last one said.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._connect_lock = threading.RLock()
        self._is_connecting = False

    @property
    def knows_nodes(self) -> bool:
        """Whether one of them has answered."""
        return "nodes_manager" in self.__dict__

    def __getattr__(self, name: str) -> Any:
        # Only for what is not there: before the first use nearly everything, later nothing.
        mine = self.__dict__
        if name.startswith("__") or "_connect_lock" not in mine:
            raise AttributeError(name)
        with self._connect_lock:
            if not (self._is_connecting or self.knows_nodes):
                self._is_connecting = True
                try:
                    super().__init__(**self._options)
                finally:
                    self._is_connecting = False
            if name in mine:
                return mine[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def close(self) -> None:
        """Whoever has not been asked need not be told."""
        if self.knows_nodes:
            super().close()
