"""The section of what is watched: limits beyond which a queue is not well, and who may read the figures by HTTP."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, SerializationInfo, field_serializer

from django_fairque.engine.model.options import Mistake, Number, Options, shown, unknown

from .redis import REVEAL

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORTEST_TOKEN = 16
TOKEN_WORDS = f"at least {SHORTEST_TOKEN} letters, digits and marks of ASCII, without spaces"


LIMIT_NAMES = (
    "depth",
    "oldest_wait",
    "wait_p95",
    "run_p95",
    "failure_share",
    "dead",
    "deferred",
    "sla_violated",
    "idle_backlog",
)
"""The figures that ``LIMITS`` can name: `django_fairque.monitoring.monitor.METRICS` defines them."""


def _token_list(value: Any) -> Any:
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
    """``MONITOR``: the limits beyond which a queue is not well, and the tokens that `django_fairque.urls` requires (none:
    nobody reads figures there)."""

    limits: dict[str, Annotated[Number, Field(ge=0)]] = Field(
        default_factory=dict, description="a mapping of figures to numbers", title="a number, at least 0"
    )
    token: Annotated[list[Annotated[SecretStr, AfterValidator(_token)]], BeforeValidator(_token_list)] = Field(
        default_factory=list,
        repr=False,
        description="a token, or a list of tokens",
        title=f"a token: {TOKEN_WORDS}",
    )

    def contradictions(self) -> Iterator[Mistake]:
        yield from (unknown(("limits", name), LIMIT_NAMES) for name in self.limits if name not in LIMIT_NAMES)
        if (share := self.limits.get("failure_share", 0)) > 1:
            yield Mistake("value", ("limits", "failure_share"), f"expected a fraction from 0 to 1; got {shown(share)}")

    @field_serializer("token")
    def _reveal(self, value: list[SecretStr], info: SerializationInfo) -> Any:
        if info.context == REVEAL:
            return [each.get_secret_value() for each in value]
        return [str(each) for each in value] if info.mode_is_json() else value
