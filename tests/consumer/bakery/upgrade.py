"""Fill a queue before an upgrade of the package, and compare it afterwards. Both versions have all names used here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from django_fairque import TaskState, get_queue

from .tasks import bake, burn, cool, deliver

NOTES = Path(__file__).parent.parent / "notes.json"
"""The file with the ids of tasks, by the states that they should reach."""


def fill() -> dict[str, list[str]]:
    """Tasks that the version before runs: their results and dead letters are to be read by the next."""
    customers = [f"customer-{number}" for number in range(20)]
    finished = [bake.enqueue(customer, loaves).id for customer in customers for loaves in range(1, 6)]
    finished += [result.id for result in deliver.enqueue_many([((number,), {}) for number in range(30)])]
    return {"finished": finished, "dead": [burn.enqueue(customer).id for customer in customers[:3]]}


def leave() -> dict[str, list[str]]:
    """Tasks and settings that the version before leaves to the next."""
    queue = get_queue()
    waiting = [cool.enqueue(f"customer-{number % 20}", float(number)).id for number in range(100)]
    waiting += [cool.using(priority=5).enqueue("urgent", 1.0).id, bake.using(delay=1).enqueue("later", 2).id]
    run = (bake.s("planned", 1) >> (cool.s("planned", 2.0) | cool.s("planned", 3.0)) >> bake.s("planned", 4)).enqueue()
    waiting += [step.id for step in run.results]
    queue.schedules.add("nightly", task=bake.s("planned", 3), cron="30 4 * * *", timezone="Europe/Berlin")
    queue.user("large").set_weight(3)
    queue.user("large").set_max_running(2)
    queue.user("paused").pause()
    return {
        "waiting": waiting,
        "delayed": [bake.using(delay=86_400).enqueue("tomorrow", 1).id],
        "paused": [bake.enqueue("paused", 1).id],
    }


def verify() -> dict[str, int]:
    """Check that the next version has everything, and go on with it. Returns how many tasks there were of each kind."""
    notes: dict[str, list[str]] = json.loads(NOTES.read_text())
    queue = get_queue()
    for kind, state in (
        ("finished", TaskState.FINISHED),
        ("waiting", TaskState.FINISHED),
        ("delayed", TaskState.SCHEDULED),
        ("paused", TaskState.QUEUED),
    ):
        for task_id in notes[kind]:
            found = queue.get_task(task_id)
            expect(f"the state of {kind} task {task_id}", found.state, state)
            if state is TaskState.FINISHED and found.result is None:
                sys.exit(f"task {task_id} has no result")
    letters = queue.dlq.list().items
    expect("dead letters", sorted(letter.original_task.task_id for letter in letters), sorted(notes["dead"]))
    expect("requeued", queue.dlq.requeue_many([letter.entry_id for letter in letters]), len(letters))
    expect("schedules", [schedule.name for schedule in queue.schedules.list()], ["nightly"])
    large = queue.user("large").stats()
    expect("settings of a user", (large.weight, large.max_running), (3, 2))
    queue.user("paused").resume()
    return {kind: len(ids) for kind, ids in notes.items()}


def expect(what: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        sys.exit(f"{what}: {found!r} instead of {wanted!r}")


def note(done: dict[str, list[str]]) -> None:
    before: dict[str, list[str]] = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    NOTES.write_text(json.dumps({**before, **done}))


def main() -> None:
    import django

    django.setup()
    if sys.argv[1] == "verify":
        sys.stdout.write(json.dumps(verify()))
    else:
        note(fill() if sys.argv[1] == "fill" else leave())


if __name__ == "__main__":
    main()
