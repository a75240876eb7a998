"""A server whose clock says what a test says, without a hook in the product: the ``now`` of a call is its server's clock."""

from __future__ import annotations

from functools import cache
from typing import Any

from redis import Redis

from django_fairque.engine.scripting import scripts

GIVEN, CLOCK = "now = tonumber(ARGV[1])", "redis.call('TIME')"
"""Where a script takes the time that its caller gives, and where it asks the server."""


@cache
def on_this_clock(name: str) -> str:
    """The command's script; nothing is given to it, and its server's clock is its first argument."""
    source = scripts.load(name).source
    assert (source.count(GIVEN), source.count(CLOCK)) == (1, 1)
    return source.replace(GIVEN, "now = nil").replace(
        CLOCK, "{ math.floor(tonumber(ARGV[1]) / 1000000), tonumber(ARGV[1]) % 1000000 }"
    )


class ServerClock:
    """A client to whose server it is what each call gives as ``now``; every call must give it."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self._shas = {scripts.load(name).function: redis.script_load(on_this_clock(name)) for name in scripts.names()}

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] == "FCALL":
            assert args[3 + args[2]] != "", "a call without now: what should the server's clock say?"
            args = ("EVALSHA", self._shas[args[1]], *args[2:])
        return self.redis.execute_command(*args, **options)

    def function_load(self, code: str, replace: bool | None = False) -> Any:
        return self.redis.function_load(code, replace)

    def pipeline(self, transaction: bool = True) -> Any:
        return self.redis.pipeline(transaction)
