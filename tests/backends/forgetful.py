"""A backend that conforms to nothing, so that the conformance tests have something to find."""

from __future__ import annotations

from typing import Any

from django_fairque.backends.compat import AnyResult, TaskResultDoesNotExist
from django_fairque.testing.conformance import RecordedBackend


class Forgetful(RecordedBackend):
    """Knows no result."""

    def get_result(self, result_id: str) -> AnyResult:
        raise TaskResultDoesNotExist(result_id)

    @property
    def results(self) -> list[Any]:
        return []
