"""Ask an operator's twelve questions of a site under load, and compare each figure with a count of the program's own.

``python -m tests.lab.twelve_questions [--seconds 60]``. Users send 80 tasks a second, more than the workers can run; one sends a
backlog at once; a machine is killed, a release fails, and the server freezes. Exit code 1 if a figure is wrong.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from django_fairque.engine.model.records import TaskState
from tests.lab.neighbors.world import World
from tests.worker.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import Client

PROJECT = Path(__file__).parents[3] / "testproject"
TASKS_PER_SECOND = 80
RUN_SECONDS = 0.2
SLOTS = 4
BACKLOG, FROZEN_SECONDS = 1500, 2.0
QUIET_USERS = [f"quiet-{number}" for number in range(8)]
FAILING_USER, NOISY_USER = "quiet-0", "noisy"
SKIPPED = {
    "Which task became slow with the last release?": "no page compares releases yet",
    "Retry 3,000 tasks safely": "no page retries at a limited pace yet",
    "Is the SLA kept, and for whom not?": "no page has the SLA by user yet",
    "What runs tonight?": "this program has no schedules yet",
}


@dataclass(frozen=True)
class Answer:
    """A question, the figure that is shown, and the program's own count, which may differ by ``tolerance``."""

    question: str
    shown: object
    own: object
    tolerance: int = 0

    @property
    def is_right(self) -> bool:
        if isinstance(self.shown, int) and isinstance(self.own, int):
            return abs(self.shown - self.own) <= self.tolerance
        return self.shown == self.own


class Site:
    """The site under load, and what the program knows without asking it: the tasks that it sent, and their states."""

    def __init__(self, world: World, client: Client) -> None:
        self.world, self.client = world, client
        self.sent: dict[str, str] = {}
        """The user of each task."""

    def send(self, user: str, name: str, count: int, *arguments: object) -> list[str]:
        ids = self.world.push_many(user, name, count, *arguments, max_retries=0)
        self.sent.update(dict.fromkeys(ids, user))
        return ids

    def count(self, user: str | None = None) -> Counter[str]:
        """Return the number of tasks in each state, of one user or of all, from the record of each task."""
        ids = [task_id for task_id, owner in self.sent.items() if user in (None, owner)]
        return Counter(str(task.state.value) for task in self.world.queue.get_tasks(ids).values())

    def read_page(self, page: str, key: str, **parameters: str) -> str:
        from django.contrib.admin.utils import quote
        from django.urls import reverse

        path = reverse(f"admin:django_fairque_{page}", args=[quote(key)])
        response = self.client.get(path, parameters)
        assert response.status_code == 200, f"{path}: {response.status_code}"
        return response.content.decode()

    def ask(self, *words: str) -> str:
        """Run a management command, and return what it prints."""
        from django.core.management import call_command

        out = StringIO()
        call_command(*words, stdout=out, no_color=True)
        return out.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.twelve_questions", description=__doc__)
    parser.add_argument(
        "--seconds", type=int, default=60, help="the time for which the site is under load; 60 by default"
    )
    seconds = parser.parse_args().seconds
    os.environ.update(DJANGO_SETTINGS_MODULE="tests.settings", TESTPROJECT_DATABASE=":memory:")
    sys.path.insert(0, str(PROJECT))
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client, override_settings

    call_command("migrate", verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    with World() as world:
        configuration = {"REDIS": {"URL": world.server.url}, "QUEUES": {"default": {}}, "CAPTURE_IN_TESTS": False}
        with override_settings(FAIRQUE=configuration, ALLOWED_HOSTS=["testserver"]):
            site = Site(world, client)
            load(site, seconds)
            answers = list(ask_questions(site))
    width = max(map(len, [*SKIPPED, *(answer.question for answer in answers)]))
    for answer in answers:
        print(
            f"{answer.question:{width}}  {answer.shown!s:>24}  {answer.own!s:>24}  {'' if answer.is_right else 'WRONG'}"
        )
    for question, reason in SKIPPED.items():
        print(f"{question:{width}}  skipped: {reason}")
    wrong = sum(not answer.is_right for answer in answers)
    print(f"{len(answers)} figures compared, {wrong} wrong; {len(SKIPPED)} questions skipped")
    return 1 if wrong else 0


def ask_questions(site: Site) -> Iterator[Answer]:
    """Ask while the workers run, then pause the noisy user, let the others end, and compare the figures, which now stay."""
    waiting = [task_id for task_id, user in site.sent.items() if user == NOISY_USER][-1]
    why = site.ask("fairque_task", "show", waiting)
    behind = int(re.search(r"([\d,]+) tasks of the same user are before it", why)[1].replace(",", ""))  # type: ignore[index]
    yield Answer(
        "Why does this task not run? (tasks before it, 40 at most have started since)",
        behind,
        site.count(NOISY_USER)["queued"] - 1,
        40,
    )
    users = read_users(site)
    most = max(users, key=lambda user: users[user][0])
    own = site.count(NOISY_USER)["queued"] if most == NOISY_USER else NOISY_USER
    yield Answer(
        f"Who is hurt, and by whom? (tasks of {most} that wait; 40 at most have started since)", users[most][0], own, 40
    )
    (stuck,) = site.send("stuck", "nap", 1, 600.0)
    eventually(lambda: site.world.queue.get_task(stuck).state is TaskState.STARTED)
    site.ask("fairque_user", "pause", NOISY_USER, "--note", "sends too much")
    eventually(lambda: site.count(NOISY_USER)["started"] == 0)
    started = BACKLOG - site.count(NOISY_USER)["queued"]
    eventually(lambda: site.count()["started"] == 1 and site.count()["queued"] == BACKLOG - started)
    finished = read_users(site)[NOISY_USER][2]
    yield Answer("Calm a noisy customer (tasks that ended since the pause)", finished - started, 0)
    stats, states = site.ask("fairque_stats"), site.count()
    for state in ("queued", "started", "finished", "failed"):
        shown = int(re.search(rf"states .*\b{state} ([\d,]+)", stats)[1].replace(",", ""))  # type: ignore[index]
        yield Answer(f"Is it getting better? ({state} tasks)", shown, states[state])
    groups = site.ask("fairque_dlq", "groups")
    counts = [int(line.split()[0]) for line in groups.splitlines()[1:-1]]
    yield Answer("What failed most, one error or many? (dead letters of each error)", counts, [states["failed"]])
    for user in (QUIET_USERS[1], FAILING_USER):
        ended = site.count(user)
        report = json.loads(site.read_page("user_report", user, download="json", hours="2"))
        in_report = report["recent"]["finished"], report["recent"]["dead_letters"]
        yield Answer(
            f"The last hours of {user} (finished tasks, dead letters)", in_report, (ended["finished"], ended["failed"])
        )
    acts = [
        line
        for line in site.ask("fairque_audit").splitlines()[1:]
        if f"pause  user {NOISY_USER}" in re.sub(" {2,}", "  ", line)
    ]
    yield Answer("What did a colleague change? (pauses of the noisy user)", len(acts), 1)
    from tests.worker.project.tasks import nap  # after the settings

    source, first = inspect.getsourcelines(nap.function)
    lines = range(first, first + len(source))
    eventually(lambda: bool(re.search(r"It is at \S*tasks\.py:\d+", site.read_page("task", stuck))))
    line = int(re.search(r"It is at \S*tasks\.py:(\d+)", site.read_page("task", stuck))[1])  # type: ignore[index]
    yield Answer(
        "Is a worker stuck, and on which line? (in the function)", "yes" if line in lines else f"line {line}", "yes"
    )


def read_users(site: Site) -> dict[str, list[int]]:
    """Return the numbers of waiting, running, finished and dead tasks that the list of users shows."""
    rows = [line.split() for line in site.ask("fairque_user", "list").splitlines()[1:] if line]
    return {row[0]: [int(number.replace(",", "")) for number in row[1:5]] for row in rows}


def load(site: Site, seconds: int) -> None:
    """Put the site under load: a backlog, 80 tasks a second, a killed machine, a failing release, a frozen server."""
    world = site.world
    workers = [world.start_worker("--processes", "1", "--concurrency", str(SLOTS)) for _ in range(2)]
    site.send(NOISY_USER, "nap", BACKLOG, RUN_SECONDS)
    begun = time.monotonic()
    for second in range(seconds):
        for user in QUIET_USERS:
            is_broken = user == FAILING_USER and second > seconds // 2
            site.send(
                user,
                "fails" if is_broken else "nap",
                TASKS_PER_SECOND // 8 // 4,
                "no credit" if is_broken else RUN_SECONDS,
            )
        if second == seconds // 3:
            machine = workers[0].children()
            workers[0].send(signal.SIGKILL)
            for process in machine:
                process.kill()
        if second == seconds * 2 // 3:
            os.kill(world.server.pid, signal.SIGSTOP)
            time.sleep(FROZEN_SECONDS)
            os.kill(world.server.pid, signal.SIGCONT)
        time.sleep(max(0.0, begun + second + 1 - time.monotonic()))


if __name__ == "__main__":
    sys.exit(main())
