"""The section of what is watched: limits beyond which a queue is not well, and who may read the figures by HTTP."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, SerializationInfo, field_serializer

from django_fairque.engine.model.options import Number, Options, seconds

from .redis import REVEAL

SHORTEST_TOKEN = 16
TOKEN_WORDS = f"at least {SHORTEST_TOKEN} letters, digits and marks of ASCII, without spaces"


def limit(what: str, default: float | None = None) -> Any:
    return Field(default=default, ge=0, description=f"{what}, at least 0")


def _listed(value: Any) -> Any:
    """One token, several (the old and the new one while they are exchanged), or, as text, a JSON list of them."""
    if isinstance(value, str):
        return json.loads(value) if value.startswith("[") else [value]
    if isinstance(value, SecretStr):
        return [value]
    return [] if value is None else value


def _token(value: SecretStr) -> SecretStr:
    if not re.fullmatch(rf"[!-~]{{{SHORTEST_TOKEN},}}", value.get_secret_value()):
        raise ValueError(f"expected {TOKEN_WORDS}")
    return value


class MonitorConfig(Options):
    """``MONITOR``: the limits, each that of one of `django_fairque.monitoring.monitor.METRICS` (None: not watched), and
    the tokens that `django_fairque.urls` asks for (none: nobody reads figures there)."""

    depth: Number | None = limit("a number of tasks")
    oldest_wait: Number | None = limit("a number of seconds")
    wait_p95: Number | None = limit("a number of seconds")
    run_p95: Number | None = limit("a number of seconds")
    failure_share: Number | None = Field(default=None, ge=0, le=1, description="a fraction from 0 to 1")
    dead: Number | None = limit("a number of dead letters")
    deferred: Number | None = limit("a number of tasks")
    sla_violated: Number | None = limit("a number of tasks")
    idle_backlog: Number | None = limit("a number of users")
    for_seconds: Number = seconds(60, least=0)
    token: Annotated[list[Annotated[SecretStr, AfterValidator(_token)]], BeforeValidator(_listed)] = Field(
        default_factory=list,
        repr=False,
        description="a token, or a list of tokens",
        title=f"a token: {TOKEN_WORDS}",
    )

    @field_serializer("token")
    def _reveal(self, value: list[SecretStr], info: SerializationInfo) -> Any:
        if info.context == REVEAL:
            return [each.get_secret_value() for each in value]
        return [str(each) for each in value] if info.mode_is_json() else value
