"""Deployments: the times at which workers first reported a version of the project's code
(``lua/commands/heartbeat.lua``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.scripting.operations import Operation, read_sound

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards

DEPLOYMENTS_KEY = "deployments"
CODE_VERSION_FIELD = "code_version"
"""The field of a heartbeat with the version of the project's code."""
MAX_VERSION_CHARACTERS = 100


@dataclass(frozen=True)
class Deployment:
    """The first report of a version of the project's code (``code_version``) by a worker, or the first report after no
    worker had the version for a minute. ``at`` is the time of the report, as Unix time.
    """

    code_version: str
    at: float


def deployed(shards: Shards) -> Operation[list[Deployment]]:
    """Return the last 50 deployments, the oldest first."""
    (entries,) = yield from read_sound([("LRANGE", shards.home.keys(DEPLOYMENTS_KEY), 0, -1)])
    return list(parse_deployments(entries))


def parse_deployments(entries: Iterable[bytes]) -> Iterator[Deployment]:
    """Yield the deployments in a list on the server; skip damaged entries."""
    for entry in entries:
        moment, _, version = entry.partition(b" ")
        if moment.isdigit() and len(moment) < 17 and version:
            yield Deployment(version.decode(errors="replace"), int(moment) / 1_000_000)
