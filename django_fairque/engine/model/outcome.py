"""Outcomes, with which a worker reports the end of an attempt, and the reply to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from django_fairque import safely
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import duration_us, retry_delay
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.lease import Lease, check_lease
from django_fairque.safely import is_a

if TYPE_CHECKING:
    from django_fairque.engine.model.lanes import Lane
    from django_fairque.engine.model.options import QueueConfig

MAX_ERROR_CHARACTERS = 2_000
MAX_TRACEBACK_CHARACTERS = 8_000
"""Numbers of characters that are kept of an error's text and traceback. The end of a traceback is kept: it names the cause."""


@dataclass(eq=False, slots=True)
class Outcome:
    """The outcome of one leased task, to be sent with `FairQueue.settle`. The class methods make outcomes.

    The class methods take the ``lease`` of the task, and ``took``, the worker time in seconds that its user is charged. If
    ``took`` is None, the server counts from the pop (right for a single task, too much for a task that waited in a
    worker's buffer). The class methods raise `TaskValidationError` if a value is out of range. An error or reason is kept
    with at most 2,000 characters, and its traceback with at most 8,000.
    """

    lease: Lease
    kind: str
    """The kind of outcome: finish, fail, overdue, later, fault, discard, release, crash or poison."""
    body: bytes = b""
    """The result as JSON, or the error's text."""
    trace: bytes = b""
    """The error's traceback."""
    took: float | None = None
    delay: float | None = None
    """Seconds until the next attempt; None for no next attempt."""
    uses_queue_backoff: bool = False
    """Whether the delay is computed from the queue's settings when the outcome is sent; ``delay`` is then ignored."""
    limits: str = ""
    """The limits of a `Retry`: ``:max:deadline``. ``max`` is a number and ``deadline`` µs since the epoch; each may be
    empty."""

    def __post_init__(self) -> None:
        """Raise `TaskValidationError` if a value can't be used. So the error is raised before any of several outcomes
        is sent.
        """
        check_lease(self.lease)
        if self.took is not None:
            duration_us(self.took, "took")
        if self.delay is not None:
            duration_us(self.delay, "delay")
        elif self.kind in ("later", "fault"):
            raise TaskValidationError("delay must be a number of seconds, got None: a task that is put off comes again")

    @classmethod
    def finish(
        cls, lease: Lease, result: Any = None, *, took: float | None = None, limit: int | None = None
    ) -> Outcome:
        """Return the outcome of a task that is done.

        ``lease`` and ``took`` are described by `Outcome`. ``result`` is any JSON value, None by default, of at most
        ``limit`` bytes (8 MiB by default). Raises `TaskSerializationError` for any other result.
        """
        body = b""
        if result is not None:
            body = json_payload.dumps(result, limit=limit or json_payload.MAX_PAYLOAD_BYTES, what="result")
        return cls(lease, "finish", body, took=took)

    @classmethod
    def fail(
        cls,
        lease: Lease,
        error: BaseException | str,
        *,
        delay: float | Literal["backoff"] | None = "backoff",
        took: float | None = None,
    ) -> Outcome:
        """Return the outcome of an attempt that failed. The task is tried again, or becomes a dead letter if its retries
        are used up.

        ``lease`` and ``took`` are described by `Outcome`. ``error`` is the exception or its text. ``delay`` is the
        number of seconds until the next attempt; ``"backoff"`` (the default) computes it from the queue's settings, as
        `FairQueue.fail` does; None makes the task a dead letter.
        """
        seconds = None if delay == "backoff" else delay
        return cls(lease, "fail", *describe(error), took, seconds, uses_queue_backoff=delay == "backoff")

    @classmethod
    def overdue(
        cls, lease: Lease, error: BaseException | str, *, delay: float | None = None, took: float | None = None
    ) -> Outcome:
        """Return the outcome of a task that did not end at its hard limit, so that its process was killed.

        ``lease`` and ``took`` are described by `Outcome`. ``error`` is the exception or its text. ``delay`` is the
        number of seconds until the next attempt; None (the default) makes the task a dead letter. For ten minutes, tasks
        of its name and user run alone (`Lease.is_quarantined`).
        """
        return cls(lease, "overdue", *describe(error), took, delay)

    @classmethod
    def retry(cls, lease: Lease, reason: BaseException | str, *, delay: float, took: float | None = None) -> Outcome:
        """Return the outcome of a task that is to run again without using up its retries.

        ``lease`` and ``took`` are described by `Outcome`. ``reason`` is an exception or a text. ``delay`` is the
        number of seconds until the next attempt.
        """
        return cls(lease, "later", *describe(reason), took, delay)

    @classmethod
    def fault(cls, lease: Lease, reason: BaseException | str, *, delay: float) -> Outcome:
        """Return the outcome of a task whose worker failed: the task runs again, and no worker time is charged.

        The attempt is counted as a delivery. At ``max_deliveries`` it counts as a failure of the task. ``lease`` is
        described by `Outcome`. ``reason`` is an exception or a text. ``delay`` is the number of seconds until the next
        attempt.
        """
        return cls(lease, "fault", *describe(reason), 0.0, delay)

    @property
    def is_put_off(self) -> bool:
        """Whether the task is to run again and has not failed."""
        return self.kind in ("later", "fault")

    @classmethod
    def discard(cls, lease: Lease, reason: BaseException | str, *, took: float | None = None) -> Outcome:
        """Return the outcome of a task whose work is no longer wanted: CANCELED, no retry, no dead letter.

        ``lease`` and ``took`` are described by `Outcome`. ``reason`` is an exception or a text.
        """
        return cls(lease, "discard", *describe(reason), took)

    @classmethod
    def release(cls, lease: Lease, *, took: float | None = 0.0, delay: float | None = None) -> Outcome:
        """Return the outcome of a task that is given back, as at a graceful stop: not counted as a delivery.

        ``lease`` and ``took`` are described by `Outcome`; ``took`` is 0 by default. The task is ready again after
        ``delay`` seconds, at once by default.
        """
        return cls(lease, "release", took=took, delay=delay)

    @classmethod
    def crash(cls, lease: Lease, reason: BaseException | str, *, took: float | None = None) -> Outcome:
        """Return the outcome of a task whose worker process died, which counts as a delivery. The task is ready again at
        once, or after a pause from the second time on.

        ``lease`` and ``took`` are described by `Outcome`. ``reason`` is an exception or a text.
        """
        return cls(lease, "crash", *describe(reason), took)

    @classmethod
    def poison(cls, lease: Lease, reason: BaseException | str, *, took: float | None = None) -> Outcome:
        """Return the outcome of a task that can never run (its payload can't be decoded): a dead letter of type
        ``poisoned``.

        ``lease`` and ``took`` are described by `Outcome`. ``reason`` is an exception or a text.
        """
        return cls(lease, "poison", *describe(reason), took)

    def to_lua_args(self, config: QueueConfig) -> list[Any]:
        """Return the arguments for this outcome in the order of ``settle.lua``. ``config`` are the queue's options, for
        the delay.
        """
        delay = queue_retry_delay(config, self.lease) if self.uses_queue_backoff else self.delay
        return [
            self.lease.task_id,
            self.lease.token,
            self.kind + self.limits,
            "" if self.took is None else duration_us(self.took, "took"),
            "" if delay is None else duration_us(delay, "delay"),
            self.body,
            self.trace,
        ]


def queue_retry_delay(config: QueueConfig, lease: Lease) -> float:
    """Return the seconds before the next attempt of a task that failed, by the queue's settings."""
    return retry_delay(lease.retry_count, **config.retry_delay_options)


class ShardHead(NamedTuple):
    """The part of a shard's reply about all users, or about a list of users.

    ``place`` is the position in the ring of the user whose turn is next, and any number for a list; None if no user can
    be served. ``given`` is the number of tasks that were handed out; for a list of user ids, it is their expected
    worker time in microseconds, divided by the sum of the users' weights.
    """

    place: float | None
    given: float


class NewcomerHead(NamedTuple):
    """The part of a shard's reply about newcomers in its ring, and about the lanes of all users.

    ``came`` is the score of the next user in the ring if that user is a newcomer, lower for a user who came earlier; else
    None. ``place`` is the position that a newcomer would get. ``has_others`` is whether users who are not newcomers wait.
    ``lanes`` are the lanes with users who can be served, and ``urgent_tag`` is the lowest tag in lane urgent.
    """

    came: float | None
    place: float
    has_others: bool
    lanes: frozenset[Lane] = frozenset()
    urgent_tag: float = 0.0


@dataclass(frozen=True)
class Settled:
    """The reply to `FairQueue.settle`.

    ``statuses`` has one word per outcome: finished, retried, dead, released, canceled, or stale (the lease was no
    longer current, nothing was changed). ``leases`` are the new leases. ``look_at`` is the Unix time at which something
    becomes due, None if nothing does by itself; ``now`` is the server's time. ``virtual_time`` is the worker time in
    microseconds that a user with constant work has got so far on this shard. ``shard_heads`` describe the users
    that can still be served: one for all users, or one for each list of users that was read, in order (empty if the
    queue has one shard). ``has_messages`` is whether there are messages for other shards. ``newcomers`` describes the
    newcomers of the shard; None if the request was for lists of users.
    """

    statuses: list[str]
    leases: list[Lease]
    now: float
    look_at: float | None
    virtual_time: float = 0.0
    shard_heads: tuple[ShardHead, ...] = ()
    has_messages: bool = False
    newcomers: NewcomerHead | None = None

    @property
    def has_more(self) -> bool:
        """Whether requested users can still be served. False if the queue has one shard, because its reply does not
        contain this.
        """
        return any(head.place is not None for head in self.shard_heads)


def describe(error: BaseException | str) -> tuple[bytes, bytes]:
    """Return an error's class and text, and its traceback, both limited in length, as bytes that are valid UTF-8.

    Accepts every exception, and does not fail if a special method of the exception raises an error.
    """
    if is_a(error, BaseException):
        name, text = safely.type_name(error), safely.get_message(error)
        trace = safely.traceback_text(error)[-MAX_TRACEBACK_CHARACTERS:]
        return _clip(f"{name}: {text}" if text else name, MAX_ERROR_CHARACTERS), _clip(trace, MAX_TRACEBACK_CHARACTERS)
    if is_a(error, str):
        return _clip(str.__str__(error), MAX_ERROR_CHARACTERS), b""
    raise TaskValidationError(f"an error must be an exception or a string, got {short(error)}")


def _clip(text: str, limit: int) -> bytes:
    return text[:limit].encode("utf-8", "backslashreplace")
