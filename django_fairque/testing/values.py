"""What captured tasks return and pass on to each other, kept as a queue keeps it: JSON of a bounded size."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from django_fairque.engine.dependencies.xcom import ABSENT
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.errors import short
from django_fairque.engine.model.ids import check_id

if TYPE_CHECKING:
    from collections.abc import Mapping


def as_kept(value: Any, *, limit: int = json_payload.HARD_LIMIT, what: str = "payload") -> Any:
    """``value`` as it comes back; `TaskSerializationError` for one that a queue refuses."""
    return json_payload.loads(json_payload.dumps(value, limit=limit, what=what))


class Values:
    """`XCom` of a captured run. Each reader has a copy, as of a queue's values: it may change that."""

    def __init__(self, values: dict[str, Any], namespace: str, limit: int) -> None:
        self._values, self.namespace, self._limit = values, namespace, limit

    def push(self, key: str, value: Any, *, ttl: float | None = None) -> None:
        self.push_many({key: value}, ttl=ttl)

    def push_many(self, values: Mapping[str, Any], *, ttl: float | None = None) -> None:  # noqa: ARG002 - as XCom's
        kept = {
            check_id(key, "an xcom key"): as_kept(value, limit=self._limit, what=f"value {short(key)}")
            for key, value in values.items()
        }
        self._values.update(kept)

    def pull(self, key: str, default: Any = ABSENT) -> Any:
        if key in self._values or default is ABSENT:
            return deepcopy(self._values[key])
        return default

    def items(self) -> dict[str, Any]:
        return deepcopy(dict(sorted(self._values.items())))

    def keys(self) -> list[str]:
        return sorted(self._values)
