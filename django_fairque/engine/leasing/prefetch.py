"""A wait for work, with the request for it already there.

Whoever has heard of work must ask for it: a round trip after the wake-up, between processes that have slept, which are slow to
begin. So a worker with nothing to do sends its fetch behind the blocking command, over the same connection, while that still
waits. The server goes on from one to the other by itself, and the tasks come with the news.

Nothing is lost so, unlike with a blocking pop: what was handed out is leased, and the call carries a nonce, so that it can be
repeated when its reply was lost (`settle`). A worker that left while its fetch lay there is handed nothing (lua/lib/fetch.lua).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.scripting.operations import ScriptCall
from django_fairque.engine.transport import cluster as clusters
from django_fairque.engine.transport.retry_policy import CLIENT_ERRORS, translate_error

if TYPE_CHECKING:
    from django_fairque.engine.leasing.lease_ops import Fetch
    from django_fairque.engine.model.outcome import Settled
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.scripting.operations import Operation


class PrefetchingWait:
    """A wait that has begun, of at most ``timeout`` seconds. One thread sleeps in `end`, another may call `send_fetch` meanwhile.

    Args:
        queue: of one shard.
    """

    def __init__(self, queue: FairQueue, timeout: float) -> None:
        self._queue = queue
        self._timeout = timeout
        self._commands = queue._shards.home  # noqa: SLF001 - the queue's own way of waiting
        self._transport = queue._transport  # noqa: SLF001
        self._pending_command = self._transport.open_blocking(leasing.wake(self._commands, timeout))
        self._lock = threading.Lock()
        self._sent_fetch: tuple[Operation[Settled], ScriptCall] | None = None

    def send_fetch(self, fetch: Fetch) -> bool:
        """Send a fetch behind the wait, once; `end` tells what came of it. False if that is over, or its client can't."""
        if self._pending_command is None:
            return False
        steps = leasing.settle(self._commands, [], fetch, None, has_waited=True)
        call = next(steps)
        assert isinstance(call, ScriptCall)  # noqa: S101 - it settles nothing on other shards
        command = self._transport.first_command(call)
        with self._lock:
            is_sent = self._pending_command.add(command)
            if is_sent:
                self._sent_fetch = steps, call
        return is_sent

    def end(self) -> tuple[bool, Settled | None]:
        """Sleep until work comes, at most so long as was said; whether it came, and the reply to what was asked for.

        Raises:
            FairQueueError: as `FairQueue.wait_for_work` and `FairQueue.settle`.
        """
        if self._pending_command is None:
            return self._queue.wait_for_work(self._timeout), None
        try:
            woken, *replies = self._pending_command.replies()
        except CLIENT_ERRORS as error:
            woken, replies, in_doubt = error, [error], isinstance(error, clusters.CONNECTION_LOST_ERRORS)
        else:
            in_doubt = False
        with self._lock:  # whoever asks may not have written it down yet
            sent_fetch = self._sent_fetch
        is_refused = isinstance(woken, Exception)
        if sent_fetch is None:
            return self._queue.wait_for_work(self._timeout) if is_refused else woken is not None, None
        steps, call = sent_fetch
        reply = replies[0]
        if isinstance(reply, Exception):
            reply = self._transport.send(leasing.repeated_call(call), in_doubt=in_doubt)
        settled = _taken(steps, reply)
        if is_refused and not in_doubt and not settled.leases:
            raise translate_error(woken) from woken
        return not is_refused and woken is not None, settled


def _taken(steps: Operation[Settled], reply: object) -> Settled:
    """The end of a fetch, which is one call."""
    try:
        steps.send(reply)
    except StopIteration as stop:
        settled: Settled = stop.value
        return settled
    raise AssertionError("a fetch is one call")
