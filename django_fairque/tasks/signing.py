"""Signatures in workers: who can write to the server but does not know ``SECRET_KEY`` can't make workers run anything.

`django_fairque.engine.model.signature` makes signatures; values that come back (results, progress, xcom) are not signed.
"""

from __future__ import annotations

import hmac
import threading
from time import monotonic
from typing import TYPE_CHECKING

from django.conf import settings

from django_fairque.engine.model.signature import DEFAULT_KEY, MAC_END, ONE_TASK, SignedFields, prepared_key, sign
from django_fairque.safely import get_logger

from .errors import TaskSignatureError

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease

SIGNATURE_LOG_SECONDS = 1.0
"""Seconds between two lines in the log: somebody who forges tasks can forge many."""

logger = get_logger("django_fairque.security")


def sign_with(key: str | bytes) -> None:
    """Sign what this process pushes with a key given here, for a producer that has no Django settings."""
    if not isinstance(key, (str, bytes)) or not key:
        raise TypeError(
            f"sign_with() expects the SECRET_KEY of the project whose workers run the tasks, got {type(key).__name__}"
        )
    DEFAULT_KEY.read = lambda: key


def check(lease: Lease, *, queue: str, prefix: str, mode: str) -> None:
    """`TaskSignatureError` if the application has not made this task as it lies before us.

    Args:
        queue, prefix: the name and the prefix of the queue that it came from.
        mode: ``SIGNING``: on, off or verify-only.

    With verify-only a task without a signature passes.
    """
    if mode == "off":
        return
    signature = lease.signature
    if not signature and mode == "verify-only":
        return
    is_bound = signature[:1] == ONE_TASK
    fields = SignedFields(
        *(prefix, queue, lease.name, lease.user_id, lease.payload_bytes),
        *((lease.task_id, lease.run_id) if is_bound else ("", "")),
        signature[MAC_END:],
    )
    if signature and (
        hmac.compare_digest(sign(prepared_key(settings.SECRET_KEY), *fields), signature)
        or any(
            hmac.compare_digest(sign(prepared_key(key), *fields), signature) for key in settings.SECRET_KEY_FALLBACKS
        )
    ):
        return
    error = TaskSignatureError(_WRONG if signature else _MISSING)
    _signature_errors.log(queue, lease.task_id, error)
    raise error


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
    """Says it in the log at once, and then how often. Thread-safe."""

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
