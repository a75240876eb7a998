"""Signatures: who can write to the server but does not know ``SECRET_KEY`` can't make workers run anything.

A signature is an HMAC-SHA256 of what decides which code runs, with what and for whom, cut to 128 bits (RFC 2104 allows
half of a hash); the key is derived from ``SECRET_KEY`` as `django.core.signing` does. It is made at the push and
checked before a payload is decoded. Values that come back (results, progress, xcom) are not signed.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import logging
import threading
from functools import cache, lru_cache
from time import monotonic
from typing import TYPE_CHECKING

from django.conf import settings

from django_fairque import conf
from django_fairque.engine.model import signature as signatures
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.signature import SignedFields

from .errors import TaskSignatureError

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease


SALT = "django_fairque.tasks.signing"
SIZE = 16
"""Bytes of a signature: 128 bits are as hard to guess as a key of AES-128, and take 22 characters."""
ONE_TASK, ANY_TASK = b"1", b"*"
"""The first byte of a seal: signed for one task; or before the task had its id (schedules, debounce)."""
SIGNATURE_LOG_SECONDS = 1.0
"""Seconds between two lines in the log: somebody who forges tasks can forge many."""

logger = logging.getLogger("django_fairque.security")


def install() -> None:
    """Sign what this process pushes, as ``SIGNING`` says at each push."""
    signatures.set_signer(_signature_if_on)


def sign_with(key: str | bytes) -> None:
    """Sign what this process pushes with a key given here, for a producer that has no Django settings."""
    if not isinstance(key, (str, bytes)) or not key:
        raise TypeError(
            f"sign_with() expects the SECRET_KEY of the project whose workers run the tasks, got {type(key).__name__}"
        )
    signatures.set_signer(lambda fields: signature_of(fields, key))


def _signature_if_on(fields: SignedFields) -> bytes:
    return b"" if mode() == "off" else signature_of(fields, settings.SECRET_KEY)


def mode() -> str:
    """``SIGNING``: on, off or verify-only; on where there is no valid configuration, and a queue was made without it."""
    known = _known.get("mode")
    if known is None:
        _watch()
        try:
            known = conf.get_config().signing
        except ConfigurationError:
            known = "on"
        _known["mode"] = known
    return known


_known: dict[str, str] = {}


@cache
def _watch() -> None:
    """Forget the mode with the configuration that it came from."""
    from django_fairque.conf.current import on_reset

    on_reset(_known.clear)


def signature_of(fields: SignedFields, key: str | bytes) -> bytes:
    prefix, queue, name, user, payload, task, run = fields
    # Lengths first, so that the fields of no two tasks give the same message.
    lengths = f"{len(prefix)},{len(queue)},{len(name)},{len(user)},{len(task)},{len(run)}"
    message = f"{lengths}:{prefix}{queue}{name}{user}{task}{run}".encode() + payload
    digest = _keyed(key).copy()
    digest.update(message)
    kind = ONE_TASK if task else ANY_TASK
    # As base64.urlsafe_b64encode, in half of its time: this is done for each task, twice.
    return kind + binascii.b2a_base64(digest.digest()[:SIZE], newline=False)[:-2].translate(_URL_SAFE)


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


@lru_cache(maxsize=16)
def _keyed(key: str | bytes) -> hmac.HMAC:
    """To be copied: what depends on the key only is half of the work. The key is one for this purpose, as
    `django.utils.crypto.salted_hmac` makes them."""
    derived = hashlib.sha256(SALT.encode() + (key if isinstance(key, bytes) else key.encode())).digest()
    return hmac.new(derived, digestmod="sha256")


def check(lease: Lease, *, queue: str, prefix: str, mode: str) -> None:
    """`TaskSignatureError` if the application has not made this task as it lies before us.

    Args:
        queue, prefix: the name and the prefix of the queue that it came from.
        mode: ``SIGNING``: on, off or verify-only.

    With verify-only a task without a signature passes.
    """
    signature = lease.signature
    if mode == "off" or (not signature and mode == "verify-only"):
        return
    is_bound = signature[:1] == ONE_TASK
    fields = SignedFields(
        *(prefix, queue, lease.name, lease.user_id, lease.payload_bytes),
        *((lease.task_id, lease.run_id) if is_bound else ()),
    )
    if signature and _is_genuine(fields, signature):
        return
    error = TaskSignatureError(_WRONG if signature else _MISSING)
    _signature_errors.log(queue, lease.task_id, error)
    raise error


def _is_genuine(fields: SignedFields, signature: bytes) -> bool:
    if hmac.compare_digest(signature_of(fields, settings.SECRET_KEY), signature):
        return True
    return any(hmac.compare_digest(signature_of(fields, key), signature) for key in settings.SECRET_KEY_FALLBACKS)


def is_signature_current(signature: bytes, fields: SignedFields) -> bool:
    """Whether this process would seal the same the same way: False after ``SECRET_KEY`` or ``SIGNING`` has changed."""
    return hmac.compare_digest(_signature_if_on(fields), signature)


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
