"""Pushes that count only when replicas have them: what is sent with such a call, and what its replies mean.

The server counts the replicas that have what *this connection* wrote, so the question goes over the very connection of the
call, behind it. A call that is repeated may write nothing, and the count would be of nothing: so something is always
written in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import NotReplicatedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_fairque.engine.scripting.operations import Call


def commands(request: Call, command: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield command
    yield "HINCRBY", request.keys[0], "confirmations", 1
    yield "WAIT", request.replicas, max(1, round(request.replication_timeout * 1000))


def confirmed(request: Call, replies: Sequence[Any]) -> Any:
    """The reply to the call itself.

    Raises:
        NotReplicatedError: it was executed, and too few replicas have confirmed it.
    """
    failure = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if failure is not None:
        raise failure
    reply, _, count = replies
    if int(count) < request.replicas:
        raise NotReplicatedError(
            f"{int(count)} of {request.replicas} replicas (replicas_to_confirm) confirmed within "
            f"{request.replication_timeout:g} s what the primary has taken: whether it outlives a failover is unknown",
            int(count),
            request.replicas,
        )
    return reply
