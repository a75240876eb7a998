"""All scenarios. Together they come to every place where a script calls the server; a test holds them to that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.lab.proof import (
    scenarios_of_acts,
    scenarios_of_damage,
    scenarios_of_incidents,
    scenarios_of_lanes,
    scenarios_of_limits,
    scenarios_of_one_shard,
    scenarios_of_organizations,
    scenarios_of_two_shards,
)
from tests.lab.proof.call_sites import all_places, line_of
from tests.lab.proof.scenario import Scenario, Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

__all__ = ["NOT_REACHED", "SCENARIOS", "Scenario", "Scene"]

RAISED_AGAIN = "-- raises the error again"
OTHER_SHARDS_HERE = "redis.call('EXISTS', before .. shard .. '}:shards')"
"""A server that has one shard looks for keys of others. These scenarios refuse calls that leave their shard; `tests/server_list`
makes this one."""
BEFORE_A_REFUSAL = "redis.call('HGET', key, 'format_version')"
"""A script that refuses does not say which calls it has made. Before this one nothing is written (`tests/formats`)."""
OF_KEPT_RUNS = "redis.call('EXISTS', unpack(wanted"
"""Functions keep running tasks, and scripts, whose calls are broken here, keep nothing. Before it nothing is written."""
NOT_REACHED = frozenset(
    place
    for place in all_places()
    if any(text in line_of(place) for text in (RAISED_AGAIN, OTHER_SHARDS_HERE, BEFORE_A_REFUSAL, OF_KEPT_RUNS))
)
"""Places that no scenario comes to: those, and a call that is repeated only to raise an unexpected error.

Remove a call that nothing can reach.
"""


HELPERS = ("carry",)


def _scenarios_in(module: ModuleType) -> Iterator[Callable[[Scene], Any]]:
    """Its functions that return an operation, in the order in which they are written."""
    for name, value in vars(module).items():
        is_its_own = callable(value) and getattr(value, "__module__", "") == module.__name__
        if is_its_own and name not in HELPERS and value.__annotations__ == {"scene": "Scene", "return": "Act"}:
            yield value


NEEDS_ITS_CALLER = ("a_graph_over", "an_end_that_is_to_be", "another_", "an_id_that", "a_new_queue")
"""Scenarios of calls that nobody completes but their caller."""
NOT_EXACT = ("a_clock_set_back", "payloads_that_were_overwritten")
"""Scenarios in which a repeated call has another result. Times that the call moved are moved again, so leases and
pauses end earlier. A popped task without payload becomes a dead letter, but an earlier repair removes the task."""
SCENARIOS = (
    *(Scenario(prepare) for prepare in _scenarios_in(scenarios_of_one_shard)),
    *(Scenario(prepare) for prepare in _scenarios_in(scenarios_of_organizations)),
    *(Scenario(prepare) for prepare in _scenarios_in(scenarios_of_lanes)),
    *(Scenario(prepare) for prepare in _scenarios_in(scenarios_of_limits)),
    *(Scenario(prepare) for prepare in _scenarios_in(scenarios_of_incidents)),
    *(Scenario(prepare) for prepare in _scenarios_in(scenarios_of_acts)),
    *(Scenario(prepare, is_exact=prepare.__name__ not in NOT_EXACT) for prepare in _scenarios_in(scenarios_of_damage)),
    *(
        Scenario(prepare, shards=2, completes=not prepare.__name__.startswith(NEEDS_ITS_CALLER))
        for prepare in _scenarios_in(scenarios_of_two_shards)
    ),
)
