"""The thread that sleeps on the server until there is work."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from django_fairque.engine.leasing.prefetch import Wait
from django_fairque.engine.model.errors import FairQueueError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.worker.fetching.wakeup import Wakeup
from django_fairque.worker.reporting.log import logger

if TYPE_CHECKING:
    from django_fairque.engine.leasing.lease_ops import Fetch
    from django_fairque.engine.model.outcome import Settled
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.fetching.fetch_thread import FetchThread
    from django_fairque.worker.leases.outage import Outage


class WakeupThread(threading.Thread):
    """Waits on the server for work, while its puller goes on reporting what ends."""

    def __init__(self, fetch_thread: FetchThread, queue: FairQueue, outage: Outage) -> None:
        super().__init__(name=f"fairque-wakeup-{queue.label}", daemon=True)
        self._fetch_thread = fetch_thread
        self._queue = queue
        self._outage = outage
        self._wakeup = Wakeup()
        self._wait: Wait | None = None
        self._is_started = True
        self.has_ended = False
        """Nobody here runs tasks any more. Set under its puller's lock, so that nothing is taken in behind that."""

    def begin_wait(self, seconds: float) -> None:
        """Begin a wait; the lane hears of its end."""
        self._wait, self._is_started = Wait(self._queue, seconds), False
        self._wakeup.notify()

    def send_fetch(self, fetch: Fetch) -> bool:
        """Send a fetch behind the wait that goes on; False if it is too late for that."""
        return self._wait is not None and self._wait.ask(fetch)

    def end(self) -> None:
        """It may still wait on the server for a while; what it hears then is passed on."""
        self.has_ended = True
        self._wakeup.notify()

    def run(self) -> None:
        while True:
            if self._wait is not None and not self._is_started:
                # Also when all else has ended: it has begun on the server, and would take a marker of which nobody hears.
                self._is_started = True
                self._finish_wait(self._wait)
            elif self.has_ended:
                return
            else:
                self._wakeup.wait(3600)

    def _finish_wait(self, wait: Wait) -> None:
        fetch_thread = self._fetch_thread
        try:
            woken, reply = wait.end()
            was_taken = fetch_thread.wait_ended(reply, woken=woken)
        except Exception as error:  # noqa: BLE001 - a worker without this thread would hear of nothing
            fetch_thread.wait_failed(error)
        else:
            if not was_taken:
                self._pass_on(reply, woken=woken)

    def _pass_on(self, reply: Settled | None, *, woken: bool) -> None:
        """To others: what it was handed, and that there is work."""
        leases = [] if reply is None else reply.leases
        if not (woken or leases):
            return
        try:
            self._queue.settle([Outcome.release(lease) for lease in leases], woken=True)
        except FairQueueError as error:  # others notice at their next poll
            self._outage.record_failure(error)
        except Exception:  # noqa: BLE001 - what has ended this worker may be closing its client just now
            logger.debug("queue %s: what a wait brought was not passed on", self._queue.label, exc_info=True)
