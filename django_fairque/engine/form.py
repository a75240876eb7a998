"""What tasks of one push have in common: told to the server, and worked out there, once for all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from .units import to_us


class Form(NamedTuple):
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
    is_chosen: bool
    """Whether its id was chosen, not made."""

    @property
    def is_idempotent(self) -> bool:
        """Whether pushing such a task again may be answered with what was known before."""
        return self.is_chosen or bool(self.unique_key)

    def to_lua_args(self) -> list[Any]:
        """As ``push.lua`` takes it, in its order."""
        return [
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
        ]


def _us(value: float | None) -> int | str:
    return "" if value is None else to_us(value)
