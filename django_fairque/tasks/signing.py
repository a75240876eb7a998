"""Signatures of tasks in workers. With signatures, nobody who can only write to the server can make workers run a task:
this also requires ``SECRET_KEY``.

`django_fairque.engine.model.signature` makes signatures. Values that tasks return (results, progress, xcom) are not
signed.
"""

from __future__ import annotations

import hmac
import threading
from time import monotonic
from typing import TYPE_CHECKING

from django.conf import settings

from django_fairque.conf.current import signing_mode
from django_fairque.engine.model.errors import FairQueueError
from django_fairque.engine.model.signature import (
    DEFAULT_KEY,
    MAC_END,
    ONE_TASK,
    SignedFields,
    fingerprint,
    prepared_key,
    sign,
)
from django_fairque.engine.queue.used_keys import used_keys
from django_fairque.safely import get_logger

from .errors import TaskSignatureError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue

SIGNATURE_LOG_SECONDS = 1.0
"""Minimum seconds between two log lines about invalid signatures, because an attacker can forge many tasks."""

logger = get_logger("django_fairque.security")


def sign_with(key: str | bytes) -> None:
    """Sign the tasks that this process sends with the given key. For a producer that has no Django settings."""
    if not isinstance(key, (str, bytes)) or not key:
        raise TypeError(
            f"sign_with() expects the SECRET_KEY of the project whose workers run the tasks, got {type(key).__name__}"
        )
    DEFAULT_KEY.read = lambda: key


def project_keys() -> tuple[str | bytes, ...]:
    """Return the current values of ``SECRET_KEY`` and ``SECRET_KEY_FALLBACKS``."""
    return (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)


def keep_key() -> None:
    """Sign with the current key until this process ends, even if a task assigns ``settings.SECRET_KEY``. Called in
    worker processes.
    """
    key = DEFAULT_KEY.read()
    DEFAULT_KEY.read, DEFAULT_KEY.is_producer = (lambda: key), False


def check(
    lease: Lease | Task, *, queue: str, prefix: str, mode: str, keys: Sequence[str | bytes] | None = None
) -> None:
    """Raise `TaskSignatureError` if the task's signature is wrong or missing. In the mode verify-only it may be
    missing.

    Args:
        queue, prefix: the name and the prefix of the queue that the task comes from.
        mode: ``SIGNING``: on, off or verify-only.
        keys: the result of `project_keys` when the worker started; by default the current keys.
    """
    if mode == "off":
        return
    signature = lease.signature or b""
    if not signature and mode == "verify-only":
        return
    is_bound = signature[:1] == ONE_TASK
    fields = SignedFields(
        *(prefix, queue, lease.name, lease.user_id, lease.payload_bytes),
        *((lease.task_id, lease.run_id) if is_bound else ("", "")),
        signature[MAC_END:],
    )
    for key in project_keys() if keys is None else keys:
        if signature and hmac.compare_digest(sign(prepared_key(key), *fields), signature):
            return
    error = TaskSignatureError(_WRONG if signature else _MISSING)
    error.is_missing = not signature
    raise error


def is_genuine(task: Task, prefix: str, queue: str) -> bool:
    """Return whether workers of the queue with this prefix and name would accept the task's signature."""
    try:
        check(task, queue=queue, prefix=prefix, mode=signing_mode())
    except TaskSignatureError:
        return False
    return True


def log_refused(queue: str, task_id: str, error: TaskSignatureError) -> None:
    """Log that a task was not run because of its signature. At most one line a second is logged, with the number of
    tasks in between.
    """
    _signature_errors.log(queue, task_id, error)


KEYS_READ_SECONDS = 5.0
"""Seconds for which a worker uses fingerprints of keys that it has read from the server."""
MISMATCHES_BEFORE_PAUSE = 3
"""The number of tasks in a row, signed with a key that the worker does not have, after which the worker pauses fetching for
`MISMATCH_PAUSE_SECONDS`, under the conditions of `KeyWatch`."""
MISMATCH_PAUSE_SECONDS = 60.0
"""Seconds of the pause after `MISMATCHES_BEFORE_PAUSE`. After the pause, one further task with an unknown key starts
the next pause."""
MISMATCH_DELAY_SECONDS = 30.0
"""Seconds until a task with an unknown key is offered again, perhaps to a worker that has the key."""


class KeyWatch:
    """Decides the meaning of a wrong signature for a worker: a forgery, or a producer whose key the worker does not
    have.

    The server has the fingerprints of the producers' keys, and each worker's record has the fingerprints of its keys. A
    wrong signature is a forgery if the worker has all keys that producers use, or if no fingerprints are known.
    Otherwise the task is returned to the queue. After `MISMATCHES_BEFORE_PAUSE` such tasks in a row the worker stops
    fetching, if it has no key of the producers at all, or if another worker has the missing key. Thread-safe.
    """

    def __init__(self, keys: Sequence[str | bytes] | None = None, clock: Callable[[], float] = monotonic) -> None:
        self.keys = tuple(project_keys() if keys is None else keys)
        self._own = {fingerprint(key) for key in self.keys}
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = -KEYS_READ_SECONDS
        self._used: set[str] = set()
        self._has_better_worker = False
        self.in_a_row = 0
        """The number of tasks with an unknown key since the last correct signature."""
        self._paused_until = -1.0

    @property
    def is_paused(self) -> bool:
        """Whether the worker must not fetch tasks, because other workers have the missing key."""
        return self._paused_until > self._clock()

    def is_of_another_key(self, queue: FairQueue) -> bool:
        """Return whether a wrong signature may come from a producer whose key this worker does not have. The server is
        read at most once in `KEYS_READ_SECONDS`.
        """
        with self._lock:
            now = self._clock()
            if now - self._read_at >= KEYS_READ_SECONDS:
                self._read_at = now
                try:
                    self._used = used_keys(queue)
                    missing = self._used - self._own
                    self._has_better_worker = bool(missing) and any(missing & worker.keys for worker in queue.workers())
                except FairQueueError:  # if the server does not answer, the task must not count as forged
                    return True
            if not self._used - self._own:
                return False
            self.in_a_row += 1
            is_odd = self._has_better_worker or not self._used & self._own
            if is_odd and self.in_a_row >= MISMATCHES_BEFORE_PAUSE and now >= self._paused_until:
                self._paused_until = now + MISMATCH_PAUSE_SECONDS
                self.in_a_row = MISMATCHES_BEFORE_PAUSE - 1
                logger.error(
                    "queue %s: this worker stops fetching for %g s, because producers sign with a key that it does not have "
                    "(fingerprint %s). The tasks wait for a worker that has it. Give this worker the SECRET_KEY of the "
                    "producers, or put their key into its SECRET_KEY_FALLBACKS",
                    *(queue.name, MISMATCH_PAUSE_SECONDS, ", ".join(sorted(self._used - self._own))),
                )
            return True


_MISSING = (
    "no signature: it was pushed while SIGNING was off, by a producer without the project's settings, or by somebody else "
    "who can write to the server. If it is yours, push it again, or requeue it with its payload edited, which signs it"
)
_WRONG = (
    "the signature is wrong: it was made with a key that is in neither SECRET_KEY nor SECRET_KEY_FALLBACKS, or the task was "
    "changed on the server. If a key was replaced, put the old one into SECRET_KEY_FALLBACKS and requeue; if none was, "
    "find out who can write to the server"
)


class _SignatureErrorLog:
    """Logs the first error at once, and then at most one line with a count in `SIGNATURE_LOG_SECONDS`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged_at = -SIGNATURE_LOG_SECONDS
        self._not_logged = 0

    def log(self, queue: str, task_id: str, error: TaskSignatureError) -> None:
        with self._lock:
            now = monotonic()
            if now - self._logged_at < SIGNATURE_LOG_SECONDS:
                self._not_logged += 1
                return
            unsaid, self._not_logged, self._logged_at = self._not_logged, 0, now
        more = f" (and {unsaid} others before it)" if unsaid else ""
        logger.error(
            "task %.80s of queue %s was not run%s: %s",
            *(ascii(task_id), queue, more, error),
            extra={"action": "signature", "task_id": task_id, "queue": queue},
        )


_signature_errors = _SignatureErrorLog()
