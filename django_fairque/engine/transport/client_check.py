"""What a queue is made with: a client that somebody else made, and not what it is made from."""

from __future__ import annotations

from django_fairque.engine.model.errors import ConfigurationError

USED = ("execute_command", "pipeline")


def check_client(client: object, queue: str, maker: str, *, is_awaited: bool) -> None:
    """Raise `ConfigurationError` for what is no client, or one of the other kind.

    Args:
        queue: the class that was called.
        maker: the configuration's method that makes a client for it.
        is_awaited: the queue's calls are, and so must be the client's.
    """
    kind = type(client)  # all that is told of it: an address may have a password in it
    if not all(callable(getattr(kind, name, None)) for name in USED):
        raise ConfigurationError(
            f"{queue} takes a redis client, as {maker}() of a FairQueueConfig makes one, got {_name(kind)}; "
            "get_queue() makes a client and a queue from the project's configuration"
        )
    # By their modules: what somebody has put around a method, to see its calls, need not look like it.
    modules = [base.__module__ for base in kind.__mro__]
    is_of_asyncio = any(module.startswith("redis.asyncio") for module in modules)
    if is_of_asyncio and not is_awaited:
        raise ConfigurationError(
            f"{queue} takes a client that is not awaited, as {maker}() makes one, got {_name(kind)}"
        )
    if is_awaited and not is_of_asyncio and any(module.startswith("redis.") for module in modules):
        raise ConfigurationError(f"{queue} takes a client of redis.asyncio, as {maker}() makes one, got {_name(kind)}")


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
