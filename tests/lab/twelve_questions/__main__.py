"""Ask an operator's twelve questions of a site under load, and compare each figure with a count of the program's own.

``python -m tests.lab.twelve_questions [--seconds 60]``. Users send 80 tasks a second, more than the workers can run; one sends a
backlog at once; a machine is killed, a release makes tasks slow and others fail, and the server freezes. Exit code 1 if a figure
is wrong.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from django_fairque.engine.model.records import TaskState
from tests.lab.neighbors.world import World
from tests.lab.twelve_questions import BAD, FIXED, GOOD, RUNS
from tests.worker.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from django.test import Client

    from tests.worker.conftest import WorkerProcess

PROJECT = Path(__file__).parents[3] / "testproject"
TASKS_PER_SECOND = 80
SLOTS, SLOTS_LATER = 4, 24
"""Slots of each machine under load, and of the one that ends the backlog of the quiet users after it."""
BACKLOG, FROZEN_SECONDS = 1500, 2.0
TREND_SECONDS = 20
QUIET_USERS = [f"quiet-{number}" for number in range(8)]
FAILING_USER, NOISY_USER, PATIENT_USER = "quiet-0", "noisy", "quiet-7"
SLA_SECONDS, PATIENT_SLA_SECONDS = 5.0, 600.0
IMPORTED, PACE = 3000, 200


@dataclass(frozen=True)
class Answer:
    """A question, the figure that is shown, and the program's own count. Numbers may differ by ``tolerance``."""

    question: str
    shown: object
    own: object
    tolerance: float = 0

    @property
    def is_right(self) -> bool:
        shown, own = _as_numbers(self.shown), _as_numbers(self.own)
        if not shown or len(shown) != len(own):
            return self.shown == self.own
        return all(abs(one - other) <= self.tolerance for one, other in zip(shown, own, strict=True))


def _as_numbers(figure: object) -> list[float]:
    """Return the numbers of a figure, which is a number or a sequence of numbers; nothing for other figures."""
    parts = list(figure) if isinstance(figure, Sequence) and not isinstance(figure, str) else [figure]
    numbers = [part for part in parts if isinstance(part, (int, float))]
    return numbers if len(numbers) == len(parts) else []


def report(answers: Iterable[Answer]) -> int:
    """Print the figures as a table, and return the exit code: 1 if one of them is wrong."""
    count = wrong = 0
    for answer in answers:
        result = "right" if answer.is_right else "WRONG"
        print(f"{answer.question:100}  {answer.shown!s:>22}  {answer.own!s:>22}  {result}")
        count, wrong = count + 1, wrong + (not answer.is_right)
    print(f"{count} figures compared, {wrong} wrong")
    return 1 if wrong else 0


class Run(NamedTuple):
    """A run of a task that came to its end, as the task's function has recorded it."""

    task_id: str
    release: str
    begun: float
    ended: float


class Sent(NamedTuple):
    user: str
    name: str
    at: float


class Site:
    """The site under load, and what the program knows without asking it: the tasks that it sent, and their runs."""

    def __init__(self, world: World, client: Client) -> None:
        self.world, self.client = world, client
        self.sent: dict[str, Sent] = {}

    def start_worker(self, release: str, slots: int) -> WorkerProcess:
        tasks = str(Path(__file__).with_name("site_tasks.py"))
        options = ("--processes", "1", "--concurrency", str(slots))
        return self.world.start_worker(*options, TEST_MORE_TASKS=tasks, FAIRQUE_CODE_VERSION=release)

    def send(self, user: str, name: str, count: int, *arguments: object) -> list[str]:
        at = time.time()
        ids = self.world.push_many(user, name, count, *arguments, max_retries=0)
        self.sent.update(dict.fromkeys(ids, Sent(user, name, at)))
        return ids

    def count(self, user: str | None = None) -> Counter[str]:
        """Return the number of tasks in each state, of one user or of all, from the record of each task."""
        ids = [task_id for task_id, sent in self.sent.items() if user in (None, sent.user)]
        return Counter(str(task.state.value) for task in self.world.queue.get_tasks(ids).values())

    def runs(self, *, user: str | None = None, name: str | None = None) -> list[Run]:
        """Return the recorded runs, of one user's tasks or of the tasks of one name."""
        lines = [line.decode().split(" ") for line in self.world.redis.lrange(RUNS, 0, -1)]
        runs = [Run(task_id, release, float(begun), float(ended)) for task_id, _, release, begun, ended in lines]
        return [
            run
            for run in runs
            if user in (None, self.sent[run.task_id].user) and name in (None, self.sent[run.task_id].name)
        ]

    def count_unended(self) -> int:
        return len(self.sent) - len({run.task_id for run in self.runs()})

    def read_page(self, page: str, *keys: str, **parameters: str) -> str:
        from django.contrib.admin.utils import quote
        from django.urls import reverse

        path = reverse(f"admin:django_fairque_{page}", args=[quote(key) for key in keys])
        response = self.client.get(path, parameters)
        assert response.status_code == 200, f"{path}: {response.status_code}"
        return response.content.decode()

    def read_queued(self) -> int:
        """Return the number of queued tasks in the tile of the overview."""
        return _find(r">Queued</a></dt><dd>([\d,]+)", self.read_page("overview"))

    def ask(self, *words: str) -> str:
        """Run a management command, and return what it prints."""
        from django.core.management import call_command

        out = StringIO()
        call_command(*words, stdout=out, no_color=True)
        return out.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.twelve_questions", description=__doc__)
    parser.add_argument(
        "--seconds", type=int, default=60, help="the time for which the site is under load; 60 by default, 30 at least"
    )
    seconds = max(30, parser.parse_args().seconds)
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
    with redirect_stdout(StringIO()), World() as world:  # the logs of workers are no result
        configuration = {
            "REDIS": {"URL": world.server.url},
            "QUEUES": {"default": {}},
            "CAPTURE_IN_TESTS": False,
            "CODE_VERSION": BAD,
        }
        with override_settings(FAIRQUE=configuration, ALLOWED_HOSTS=["testserver"]):
            site = Site(world, client)
            answers = list(ask_all(site, seconds))
    return report(answers)


def ask_all(site: Site, seconds: int) -> Iterator[Answer]:
    """Put the site under load, and ask: while the workers run, with the noisy user paused, and after the repair."""
    for user in (*QUIET_USERS, NOISY_USER):
        sla = PATIENT_SLA_SECONDS if user == PATIENT_USER else SLA_SECONDS
        site.ask("fairque_user", "limit", user, "--sla", str(sla), "--create")
    before = load(site, seconds)
    times = [sent.at for sent in site.sent.values() if sent.user != NOISY_USER]
    sent_a_second = round(len(times) / (max(times) - min(times) + 1), 1)
    yield Answer("Load (tasks that are sent in a second: planned, own count)", TASKS_PER_SECOND, sent_a_second, 2)
    yield from ask_under_load(site, before)
    yield from ask_at_rest(site)
    yield from ask_about_releases(site)
    yield from ask_about_sla(site)
    yield ask_about_tonight(site)
    yield from retry_safely(site)


def ask_under_load(site: Site, before: tuple[int, int]) -> Iterator[Answer]:
    change = site.read_queued() - before[0], site.count_unended() - before[1]
    yield Answer(f"Is it getting better? (change of the queued tasks in {TREND_SECONDS} s)", *change, 40)
    trend = re.search(r'class="fq-trend">(growing|done)', site.read_page("overview"))
    own_trend = "growing" if change[1] > 0 else "done"
    yield Answer(
        "Is it getting better? (the overview's backlog: growing, or done in some time)", trend and trend[1], own_trend
    )
    oldest = json.loads(site.ask("fairque_stats", "--json"))["oldest_wait_seconds"]
    ended = {run.task_id for run in site.runs()}
    own_oldest = time.time() - min(sent.at for task_id, sent in site.sent.items() if task_id not in ended)
    yield Answer("Is it getting better? (longest wait in seconds)", round(oldest, 1), round(own_oldest, 1), 2)
    waiting = [task_id for task_id, sent in site.sent.items() if sent.user == NOISY_USER][-1]
    behind = _find(r"([\d,]+) tasks of the same user are before it", site.ask("fairque_task", "show", waiting))
    own = site.count(NOISY_USER)["queued"] - 1
    yield Answer("Why does this task not run? (tasks of the same user before it)", behind, own, 40)
    users = read_users(site)
    most = max(users, key=lambda user: users[user][0])
    own_most = Counter(sent.user for task_id, sent in site.sent.items() if task_id not in ended).most_common(1)[0][0]
    yield Answer("Who is hurt, and by whom? (the user with most waiting tasks)", most, own_most)
    own = site.count(most)["queued"]
    yield Answer("Who is hurt, and by whom? (its waiting tasks)", users[most][0], own, 40)


def ask_at_rest(site: Site) -> Iterator[Answer]:
    """Pause the noisy user, let the tasks of the others end, and compare the figures, which then stay."""
    (stuck,) = site.send("stuck", "nap", 1, 600.0)
    eventually(lambda: site.world.queue.get_task(stuck).state is TaskState.STARTED)
    site.ask("fairque_user", "pause", NOISY_USER, "--note", "sends too much")
    eventually(lambda: site.count(NOISY_USER)["started"] == 0)
    started = BACKLOG - site.count(NOISY_USER)["queued"]
    site.start_worker(BAD, SLOTS_LATER)
    eventually(lambda: [site.count().get(state) for state in ("started", "queued")] == [1, BACKLOG - started], 180)
    finished, held = read_users(site)[NOISY_USER][2], site.count(NOISY_USER)["queued"]
    yield Answer("Calm a noisy customer (tasks that ended since the pause)", finished - started, 0)
    row = next(line for line in site.ask("fairque_user", "list").splitlines() if line.startswith(NOISY_USER))
    yield Answer(
        "Calm a noisy customer (its waiting tasks, fairque_user list)", _find(r"([\d,]+) held back", row), held
    )
    on_page = _find(rf">{NOISY_USER}</a>(?s:.*?)>([\d,]+) held back<", site.read_page("users"))
    yield Answer("Calm a noisy customer (its waiting tasks, in its row of the page)", on_page, held)
    stats, states = site.ask("fairque_stats"), site.count()
    names = ("queued", "started", "finished", "failed")
    shown = [_find(rf"states .*\b{state} ([\d,]+)", stats) for state in names]
    yield Answer(
        "Is it getting better? (queued, started, finished and failed)", shown, [states[state] for state in names]
    )
    groups = site.ask("fairque_dlq", "groups")
    counts = [int(line.split()[0].replace(",", "")) for line in groups.splitlines()[1:-1]]
    failed = len([run for run in site.runs(name="charge") if run.release == BAD])
    yield Answer("What failed most, one error or many? (dead letters of each error)", counts, [failed])
    for user in (QUIET_USERS[1], FAILING_USER):
        recent, own = read_report(site, user), site.count(user)
        in_report = recent["finished"], recent["dead_letters"]
        yield Answer(f"The last hours of {user} (finished, dead letters)", in_report, (own["finished"], own["failed"]))
    lines = [re.sub(" {2,}", "  ", line) for line in site.ask("fairque_audit").splitlines()[1:]]
    pauses = len([line for line in lines if f"pause  user {NOISY_USER}" in line])
    yield Answer("What did a colleague change? (pauses of the noisy user)", pauses, 1)
    from tests.worker.project.tasks import nap  # after the settings

    source, first = inspect.getsourcelines(nap.function)
    pattern = r"It is at \S*tasks\.py:(\d+)"
    eventually(lambda: bool(re.search(pattern, site.read_page("task", stuck))))
    line = _find(pattern, site.read_page("task", stuck))
    is_in_function = "yes" if first <= line < first + len(source) else f"line {line}"
    yield Answer("Is a worker stuck, and on which line? (in the function)", is_in_function, "yes")


def ask_about_releases(site: Site) -> Iterator[Answer]:
    question = "Which task became slow with the last release?"
    compared = {one["name"]: one for one in json.loads(site.ask("fairque_stats", "--json"))["releases"]}
    times: dict[tuple[str, str], list[float]] = {}
    for run in site.runs():
        times.setdefault((site.sent[run.task_id].name, run.release), []).append(run.ended - run.begun)
    ratios = {
        name: statistics.median(times[name, BAD]) / statistics.median(times[name, GOOD]) for name in ("mail", "invoice")
    }
    slow = sorted(name for name, one in compared.items() if "slower" in (one["worse"] or ""))
    yield Answer(question, slow, sorted(name for name, ratio in ratios.items() if ratio >= 1.5))
    overview = site.read_page("overview")
    on_page = sorted(name for name in ratios if re.search(rf"<bdi>[^<]*\b{name}\b[^<]*slower", overview))
    yield Answer(f"{question} (overview)", on_page, slow)
    shown_ratio = _find_text(r"<bdi>invoice</bdi></th>.*?→.*?→.*?<td[^>]*>([\d.]+)</td>", site.read_page("task_names"))
    yield Answer(f"{question} (times slower, page of task names)", float(shown_ratio), round(ratios["invoice"], 1), 0.8)
    for name in ("mail", "invoice", "charge"):
        attempts = [compared[name][side]["attempts"] for side in ("before", "now")]
        own = [len(times[name, release]) for release in (GOOD, BAD)]
        yield Answer(f"{question} (attempts of {name} before and since)", attempts, own, SLOTS)
    own_failed = len(times["charge", BAD])
    yield Answer(f"{question} (failed attempts of charge)", compared["charge"]["now"]["failed"], own_failed)


def ask_about_sla(site: Site) -> Iterator[Answer]:
    """Ask the reports of users. Waits within half a second of the SLA, and killed runs, may be counted either way."""
    recent = {user: read_report(site, user) for user in (*QUIET_USERS, NOISY_USER)}
    missed = []
    for user in recent:
        sla = PATIENT_SLA_SECONDS if user == PATIENT_USER else SLA_SECONDS
        waits = [run.begun - site.sent[run.task_id].at for run in site.runs(user=user)]
        late = sum(wait > sla for wait in waits)
        missed += [user] if late else []
        if user in (QUIET_USERS[1], PATIENT_USER, NOISY_USER):
            close = sum(abs(wait - sla) < 0.5 for wait in waits)
            shown = [recent[user][name] for name in ("sla_kept", "sla_missed")]
            question = f"Is the SLA kept, and for whom not? (starts of {user}: kept, missed)"
            yield Answer(question, shown, [len(waits) - late, late], close + SLOTS)
    shown_missed = [user for user, figures in recent.items() if figures["sla_missed"]]
    yield Answer(
        "Is the SLA kept, and for whom not? (users with missed starts)", ", ".join(shown_missed), ", ".join(missed)
    )


def ask_about_tonight(site: Site) -> Answer:
    from django.utils.timezone import localtime

    hour = datetime.now(timezone.utc).replace(minute=0) + timedelta(hours=6)
    cron = f"0,30 {hour.hour} * * *"
    site.ask(
        "fairque_schedule", "add", "nightly", "--task", "nap", "--args", "[1]", "--cron", cron, "--timezone", "UTC"
    )
    times = re.findall(r"(\d\d:\d\d) <bdi>nightly</bdi>", site.read_page("upcoming"))
    forecasts = site.world.queue.schedules.upcoming().schedules
    begins = [run.begin for plan in forecasts if plan.schedule.name == "nightly" for run in plan.runs]
    shown = [times, [f"{localtime(datetime.fromtimestamp(at, timezone.utc)):%H:%M}" for at in begins]]
    own = [f"{localtime(hour + timedelta(minutes=minutes)):%H:%M}" for minutes in (0, 30)]
    return Answer("What runs tonight? (page and call)", shown, [own, own])


def retry_safely(site: Site) -> Iterator[Answer]:
    """Let 3,000 tasks fail, retry them before and after the repair, and compare the counts of the acts."""
    question, ids = "Retry 3,000 safely", site.send("importer", "import_row", IMPORTED)
    eventually(lambda: site.count("importer")["failed"] == IMPORTED, 120)
    act = start_act(site, "--stop-after", "10")
    eventually(lambda: read_act(site, act)[0] == "stopped", 60)
    eventually(lambda: site.count("importer")["failed"] == IMPORTED)
    retried = len(site.runs(user="importer")) - IMPORTED
    yield Answer(f"{question} (retried until the act stopped itself)", read_act(site, act)[1]["retried"], retried)
    yield Answer(
        f"{question} (most of them are still untouched)", "yes", "yes" if retried < IMPORTED / 2 else str(retried)
    )
    site.start_worker(FIXED, SLOTS_LATER)
    for worker in site.world.workers[:-1]:
        worker.close()
    first = len(site.runs(user="importer"))
    act = start_act(site, "--trial", "--pace", str(PACE))
    eventually(lambda: read_act(site, act)[1].get("succeeded") == 1, 60)
    yield Answer(f"{question} (tasks that the trial has changed)", 1, site.count("importer")["finished"])
    site.ask("fairque_act", "go-on", act)
    eventually(lambda: read_act(site, act)[0] == "done", 120)
    figures, states = read_act(site, act)[1], site.count("importer")
    own = len(ids), states["finished"]
    yield Answer(f"{question} (retried, succeeded)", (figures["retried"], figures["succeeded"]), own)
    begun = sorted(run.begun for run in site.runs(user="importer")[first + 1 :])
    pace = len(begun) / (begun[-1] - begun[0])
    yield Answer(f"{question} (not faster than {PACE} a second)", "yes", "yes" if pace <= PACE * 1.1 else f"{pace:.0f}")


def start_act(site: Site, *options: str) -> str:
    """Start to retry the dead letters of the importer, and return the act's id."""
    return _find_text(r"act +(\S+)", site.ask("fairque_act", "start", "retry", "--user", "importer", *options))


def read_act(site: Site, act: str) -> tuple[str, dict[str, int]]:
    """Return the state of an act, and the counts of its result by their first word."""
    text = site.ask("fairque_act", "show", act)
    counts = re.findall(r"(\d[\d,]*) (\w+)", _find_text(r"result +(.*)", text))
    return _find_text(r"state +(\w+)", text), {word: int(count.replace(",", "")) for count, word in counts}


def read_report(site: Site, user: str) -> dict[str, int]:
    """Return the sums of the last two hours of the user's report."""
    recent: dict[str, int] = json.loads(site.read_page("user_report", user, download="json", hours="2"))["recent"]
    return recent


def read_users(site: Site) -> dict[str, list[int]]:
    """Return the numbers of waiting, running, finished and dead tasks that the list of users shows."""
    rows = [line.split() for line in site.ask("fairque_user", "list").splitlines()[1:] if line]
    return {row[0]: [int(number.replace(",", "")) for number in row[1:5]] for row in rows}


def _find(pattern: str, text: str) -> int:
    return int(_find_text(pattern, text).replace(",", ""))


def _find_text(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, f"{pattern} is not in {text}"
    return found[1]


def load(site: Site, seconds: int) -> tuple[int, int]:
    """Put the site under load: a backlog, 80 tasks a second, a killed machine, a bad release, a frozen server. Return the
    queued tasks some time before the end: as shown, and by the program's own count.
    """
    before, workers = (0, 0), [site.start_worker(GOOD, SLOTS) for _ in range(2)]
    site.send(NOISY_USER, "mail", BACKLOG)
    begun = time.monotonic()
    for second in range(seconds):
        if second == seconds - TREND_SECONDS:
            before = site.read_queued(), site.count_unended()
        for index, user in enumerate(QUIET_USERS):
            name = "charge" if user == FAILING_USER else ("mail", "invoice")[index % 2]
            site.send(user, name, TASKS_PER_SECOND // len(QUIET_USERS))
        if second == seconds // 3:
            workers[0].close()
        if second == seconds // 2:
            site.start_worker(BAD, SLOTS)
            workers[1].send(signal.SIGTERM)
        if second == seconds * 2 // 3:
            os.kill(site.world.server.pid, signal.SIGSTOP)
            time.sleep(FROZEN_SECONDS)
            os.kill(site.world.server.pid, signal.SIGCONT)
        time.sleep(max(0.0, begun + second + 1 - time.monotonic()))
    return before


if __name__ == "__main__":
    sys.exit(main())
