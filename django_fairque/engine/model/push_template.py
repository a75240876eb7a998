"""What tasks of one push have in common: sent to the server, and evaluated there, once for all of them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from django_fairque.engine.model.durations import seconds, to_us
from django_fairque.engine.model.payload import pack, unpack


class PushTemplate(NamedTuple):
    """Everything of a task that is no different for many others, as a rule. Seconds, since the epoch for moments."""

    name: str
    priority: int
    execute_after: float | None
    expires_at: float | None
    max_retries: int
    timeout: float | None
    sla: float | None
    unique_key: str
    unique_for: float | None
    debounce: float | None
    debounce_max_wait: float | None
    retry_count: int
    """How often it was retried before this push; 0 for almost every task, and then not sent."""
    is_chosen: bool
    """Whether its id was chosen, not made."""

    @property
    def is_idempotent(self) -> bool:
        """Whether pushing such a task again may be answered with what was known before."""
        return self.is_chosen or bool(self.unique_key)

    @classmethod
    def unpacked(cls, packed: bytes) -> PushTemplate:
        """The form that was packed; `ValueError`, `TypeError` or `LookupError` if this is none."""
        name, priority, chosen, due, expires, retries, timeout, sla, key, unique_for, debounce, max_wait, *used = (
            value.decode() for value in unpack(packed)
        )
        return cls(
            *(name, int(priority), seconds(due), seconds(expires), int(retries), seconds(timeout), seconds(sla), key),
            *(seconds(unique_for), seconds(debounce), seconds(max_wait)),
            *(int(used[0]) if used else 0, chosen == "1"),
        )

    @lru_cache(maxsize=256)  # noqa: B019 - of a tuple, and few: most calls repeat the options of earlier ones
    def packed(self) -> bytes:
        """As ``push.lua`` takes it, in its order."""
        return pack(
            [
                self.name,
                int(self.priority),
                int(self.is_chosen),
                _us(self.execute_after),
                _us(self.expires_at),
                self.max_retries,
                _us(self.timeout),
                _us(self.sla),
                self.unique_key,
                _us(self.unique_for),
                _us(self.debounce),
                _us(self.debounce_max_wait),
                *([self.retry_count] if self.retry_count else []),
            ]
        )


def _us(value: float | None) -> int | str:
    return "" if value is None else to_us(value)
