"""`LazyRedisCluster`, the client of a cluster.

It is a module by itself because redis-py's module for clusters is slow to import and brings OpenTelemetry with it, where that is
installed: only a process that uses a cluster imports it.
"""

from __future__ import annotations

import threading
from typing import Any

from redis.cluster import RedisCluster


class LazyRedisCluster(RedisCluster):
    """A client that asks the cluster for its nodes when it is first used, as the asynchronous client of redis-py does.

    redis-py's synchronous client asks when it is made, and raises if no node answers: a worker that starts before its
    servers could not even report that it waits for them, and a web process whose queue is made at import could not start.

    The client is made of the options of a `RedisCluster`. It is thread-safe: a thread that uses it while another one asks
    waits for that result. Until a node has answered, each use asks again and raises the error of the last attempt.
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
        """Close the connections, if there are any."""
        if self.knows_nodes:
            super().close()
