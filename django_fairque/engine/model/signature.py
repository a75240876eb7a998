"""Signatures: a few bytes behind a payload on the server, by which workers know that it comes from the application.

The engine stores signatures and does not check them. `set_signer` installs the function that makes them; the worker checks them
(`django_fairque.tasks.signing`). The separator is a byte that JSON can't contain, so what precedes it is the payload,
unchanged, and payloads with and without a signature can be stored together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

SIGNATURE_SEPARATOR = b"\x1e"
MAX_SIGNATURE_BYTES = 64
"""The most bytes of a signature, with its separator."""


class SignedFields(NamedTuple):
    """The fields of a task that are signed: they decide which code runs, with which arguments and for which user.

    ``prefix`` and ``queue`` are those of its queue, ``name``, ``user_id`` and ``payload`` the task's. ``task_id`` and
    ``run_id`` are empty where they are not known yet: a schedule's tasks get their ids when it fires, and a debounced
    payload may become that of an earlier task.
    """

    prefix: str
    queue: str
    name: str
    user_id: str
    payload: bytes
    task_id: str = ""
    run_id: str = ""


_signer: Callable[[SignedFields], bytes] | None = None


def set_signer(signer: Callable[[SignedFields], bytes] | None) -> Callable[[SignedFields], bytes] | None:
    """Sign the tasks that this process pushes with this function; None signs nothing. Return the function that was set before."""
    global _signer
    before, _signer = _signer, signer
    return before


def is_signing() -> bool:
    """Whether this process signs tasks; if not, callers need not collect the signed fields."""
    return _signer is not None


def sign_payload(fields: SignedFields) -> bytes:
    """The bytes to append to the payload: a separator and a signature, or nothing."""
    made = b"" if _signer is None else _signer(fields)
    return SIGNATURE_SEPARATOR + made if made else b""


def split_signature(raw: bytes) -> tuple[bytes, bytes]:
    """The payload, and its signature or nothing."""
    at = raw.rfind(SIGNATURE_SEPARATOR, -MAX_SIGNATURE_BYTES)
    return (raw, b"") if at < 0 else (raw[:at], raw[at + 1 :])
