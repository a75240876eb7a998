"""Use the package like a project: enqueue tasks, read the queue, change settings; print results after a worker ran."""

from __future__ import annotations

import json
import sys
from typing import Any

from django_fairque import TaskResult, TaskState, current_user_id, get_queue

from .tasks import bake, cool, deliver


def send() -> list[str]:
    results: list[TaskResult] = [bake.enqueue("ann", 3), cool.using(priority=5).enqueue("bob", minutes=1.5)]
    results += deliver.enqueue_many([((number,), {}) for number in range(3)])
    run = (bake.s("eve", 1) >> (cool.s("eve", 2.0) | cool.s("eve", 3.0))).enqueue()
    return [result.id for result in results] + [step.id for step in run.results]


def look(task_ids: list[str]) -> list[Any]:
    finished: list[Any] = []
    for task_id in task_ids:
        task = get_queue().get_task(task_id)
        finished.append(task.result if task.state is TaskState.FINISHED else task.state.value)
    return finished


def who() -> str | None:
    return current_user_id()


def main() -> None:
    import django

    django.setup()
    sys.stdout.write(json.dumps(send() if sys.argv[1] == "send" else look(sys.argv[2:])))


if __name__ == "__main__":
    main()
