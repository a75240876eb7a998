"""The time from sending a task to its start on an idle worker, and that time of peers in the same rounds, over a unix socket."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.servers import Server

from .peers import ENVIRONMENTS, OURS, Peer, measure_idle_to_start, wait_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .table import Table

BY_DEFAULT = ("huey",)


def run(table: Table, *, quick: bool, only: Sequence[str] = (), rounds: int = 5) -> None:
    """Measure ours and the peers, and add their figures to ``table``.

    Args:
        table: where the figures go; its details have the versions of the peers.
        quick: one round.
        only: names of peers; by default the fastest that runs tasks in threads.
        rounds: how often each is measured, if not quick.
    """
    ENVIRONMENTS.mkdir(exist_ok=True)
    peers, found = list(only or BY_DEFAULT), defaultdict(list)
    with Server() as server, server.client() as client:
        for _ in range(1 if quick else rounds):
            for name in (OURS, *peers):
                found[name].append(measure_idle_to_start(name, server, client))
        for name in peers:
            table.details[name] = Peer(name, server, 0).versions()
    for name, waits in found.items():
        table.add(wait_of(name), waits, "ms")
        if name != OURS:
            ratios = [ours / wait for ours, wait in zip(found[OURS], waits, strict=True)]
            table.add(f"  {OURS} over {name}", ratios, "×", "≤ 1.3 ×" if name == "huey" else "")
