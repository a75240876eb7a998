"""Signatures: a few bytes after a payload on the server, with which workers check that it comes from the application.

A signature is an HMAC-SHA256 of the fields that determine the code, its arguments, the user, the delay and the expiry. The
HMAC is cut to 128 bits (RFC 2104 allows half of a hash). The key is derived from ``SECRET_KEY`` as `django.core.signing` does
it. Queues sign with the `SigningKey` of their configuration when they push, and workers check before they decode a payload
(`django_fairque.tasks.signing`).

The separator is a byte that JSON can't contain. The bytes before the separator are the unchanged payload, so payloads with
and without a signature can be stored together.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from django_fairque.engine.model.durations import to_us

SIGNATURE_SEPARATOR = b"\x1e"
MAX_SIGNATURE_BYTES = 64
"""The most bytes of a signature, with its separator."""
SALT = "django_fairque.tasks.signing"
SIZE = 16
"""Bytes of a signature: 128 bits are as hard to guess as a key of AES-128, and take 22 characters."""
FINGERPRINT_LABEL = b"fingerprint of a signing key"
"""The message for a fingerprint. No task's message begins like this: the messages of tasks begin with lengths."""
ONE_TASK, ANY_TASK = b"1", b"*"
"""The first byte of a signature: for one task, or for any task (schedules, debounce), made before the task had its id."""
MAC_END = 23
"""The number of bytes of a signature before the lengths of time that it covers: its first byte, and the HMAC as text.
"""


class SignedFields(NamedTuple):
    """The fields of a task that are signed: they decide which code runs, with which arguments and for which user.

    ``prefix`` and ``queue`` are those of its queue, ``name``, ``user_id`` and ``payload`` those of the task.
    ``task_id`` and ``run_id`` are empty if they are not known yet: a schedule's tasks get their ids when it fires, and
    a debounced payload may replace the payload of an earlier task. ``spans`` are the task's ``delay`` and ``expires``,
    see `signed_spans`.
    """

    prefix: str
    queue: str
    name: str
    user_id: str
    payload: bytes
    task_id: str = ""
    run_id: str = ""
    spans: bytes = b""


@dataclass
class SigningKey:
    """The key that signs the tasks which a queue pushes, a part of its configuration (`QueueConfig.signing_key`)."""

    read: Callable[[], str | bytes | None] = lambda: None
    """A function that returns the key; None if nothing is to be signed. Each push calls it, so a new key takes effect at once."""
    is_producer: bool = True
    """Whether queues write the key's fingerprint to the server. Worker processes do not, because a worker with another key would
    then count as a producer.
    """


DEFAULT_KEY = SigningKey()
"""The key of this process's queues. The Django app, or a producer without Django, sets the function that reads it."""


def sign_payload(fields: SignedFields, key: str | bytes | None) -> bytes:
    """Return the bytes to append to the payload: a separator and a signature, or nothing if there is no key."""
    return b"" if key is None else SIGNATURE_SEPARATOR + sign(prepared_key(key), *fields)


def sign(
    key: hmac.HMAC,
    prefix: str,
    queue: str,
    name: str,
    user: str,
    payload: bytes,
    task: str = "",
    run: str = "",
    spans: bytes = b"",
) -> bytes:
    """Return the signature of the fields of a task with a `prepared_key`. The fields are those of `SignedFields`, but
    single arguments, because making an object for each task would take time.

    The signature ends with the ``spans``, because a worker needs them for its check: the server keeps only the moments that it
    computed from them.
    """
    # Lengths first, so that the fields of no two tasks give the same message.
    lengths = f"{len(prefix)},{len(queue)},{len(name)},{len(user)},{len(task)},{len(run)}"
    if spans:
        lengths += f",{len(spans)}"
    digest = key.copy()
    digest.update(f"{lengths}:{prefix}{queue}{name}{user}{task}{run}".encode() + spans + payload)
    kind = ONE_TASK if task else ANY_TASK
    # The same result as base64.urlsafe_b64encode in half of the time: every task needs this twice.
    return kind + binascii.b2a_base64(digest.digest()[:SIZE], newline=False)[:-2].translate(_URL_SAFE) + spans


def signed_spans(delay: float | None, expires: float | None) -> bytes:
    """Return a task's ``delay`` and ``expires`` (seconds) in the form in which they are signed, in microseconds."""
    return ",".join("" if span is None else str(to_us(span)) for span in (delay, expires)).encode()


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


@lru_cache(maxsize=16)
def prepared_key(key: str | bytes) -> hmac.HMAC:
    """Return an HMAC object to be copied for each message. Half of the work depends only on the key, and is done here once.

    The key is derived for this purpose, as `django.utils.crypto.salted_hmac` does it.
    """
    derived = hashlib.sha256(SALT.encode() + (key if isinstance(key, bytes) else key.encode())).digest()
    made = hmac.new(derived, digestmod="sha256")
    found: hmac.HMAC = getattr(made, "_hmac", made)  # OpenSSL's object has the same methods, without a layer of Python
    return found


@lru_cache(maxsize=16)
def fingerprint(key: str | bytes) -> str:
    """Return 16 characters that identify the key. Nobody can get the key from the fingerprint or sign with it."""
    digest = prepared_key(key).copy()
    digest.update(FINGERPRINT_LABEL)
    return binascii.b2a_base64(digest.digest()[:12], newline=False).translate(_URL_SAFE).decode()


def split_signature(raw: bytes) -> tuple[bytes, bytes]:
    """Return the payload, and its signature (empty if there is none)."""
    at = raw.rfind(SIGNATURE_SEPARATOR, -MAX_SIGNATURE_BYTES)
    return (raw, b"") if at < 0 else (raw[:at], raw[at + 1 :])
