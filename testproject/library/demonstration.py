"""What ``manage.py demo`` plays: a morning on which everybody comes at once, the greediest first."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.utils import timezone

from django_fairque import get_queue
from django_fairque.audit import read_entries, write_entry
from django_fairque.engine.scripting.acts import Act

from . import report
from .endless_day import DOCUMENTS, NOISY, PAUSED, WEIGHTS, EndlessDay, end_day
from .errors import IncompleteError, NoSourcesError
from .loading import load_files, send_errands, send_nightly_job, store_files
from .models import Document
from .pipelines import package_pipeline
from .progress import follow, unfinished
from .report import plural
from .serving import Site
from .sources import packages, standard_library
from .tasks import send_code
from .timings import runs_of
from .workers import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from django.core.management.base import OutputWrapper

    from django_fairque.monitoring.first_come import ServedTask

LOGIN = "demo"
"""Name and password of the demonstration's administrator."""
SLOTS_PER_PROCESS = 4
"""While the site is up; its tasks mostly wait for others."""
SHUTDOWN_SECONDS = 2
"""For which running tasks may go on after Ctrl-C; one of them runs for two minutes."""
NIGHTLY_PART = 10
"""Tasks of the noisy user for each customer of the nightly job."""
MOST_NAMED = 10
"""Documents that an error names."""


class Demonstration:
    """The whole of it, with everything that it says written to ``out``.

    Parameters
    ----------
    processes
        Worker processes, each running one task at a time.
    noisy
        Tasks that one user sends before all others, with a nightly job of bulk tasks and an urgent mail of each of the others.
    only
        The packages of the standard library to take; empty for all.
    """

    def __init__(self, out: OutputWrapper, *, processes: int, noisy: int = 0, only: Sequence[str] = ()) -> None:
        self._out = out
        self._processes = processes
        self._noisy = noisy
        self._root = standard_library()
        self._files = find_files(self._root, only)
        self._queue = get_queue()

    def play(self) -> None:
        began = timezone.now()
        self._prepare()
        with Worker(self._processes) as worker:
            worker.wait_until_ready()
            before = unfinished(self._queue.get_stats())
            sent: list[str] = []
            for some in self._send():
                worker.check()
                sent += some
            self._say(f"{len(sent):,} tasks sent" + (f", {before:,} were left from before" if before else ""))
            follow(self._queue, before + len(sent), self._out, worker.check)
        runs = runs_of(self._queue, sent)
        self._check(runs, sent, began)
        self._tell(runs)
        self._invite()

    def serve(self, *, pipeline: bool = False, browser: bool = True) -> None:
        """Bring up the site with a worker and work for it, until somebody interrupts.

        Parameters
        ----------
        pipeline
            Begin with a pipeline for each package instead of analysing its documents.
        browser
            Open the admin in the desktop's browser, if there is one.
        """
        self._prepare()
        with Worker(self._processes, SLOTS_PER_PROCESS, SHUTDOWN_SECONDS) as worker, Site() as site:
            worker.wait_until_ready()
            site.wait_until_ready()
            self._say(
                f"The admin is at {site.address} as {LOGIN!r} with the password {LOGIN!r}. Ctrl-C ends all of it."
            )

            def check() -> None:
                worker.check()
                site.check()

            try:
                if browser:
                    open_browser(site.first_page)
                for _some in self._send_pipelines() if pipeline else self._send():
                    check()
                self._note_changes()
                self._endless_day().play(check)
            except KeyboardInterrupt:
                self._say("\nStopping.")
        end_day(self._queue)
        self._say("Stopped. What is left stays in the queue, for the next demo or fairque_worker.")

    def _endless_day(self) -> EndlessDay:
        owner, files = next(iter(self._files.items()))
        documents = store_files(owner, files[:DOCUMENTS], self._root)
        return EndlessDay(self._queue, self._processes * SLOTS_PER_PROCESS, owner, documents)

    def _note_changes(self) -> None:
        """Write into the audit what the day sets for customers, as the admin's pages do: once for all demonstrations."""
        weights = [
            Act(self._queue.name, "weight", "user", name, {"weight": 1}, {"weight": weight})
            for name, weight in WEIGHTS.items()
            if weight != 1
        ]
        pause = Act(self._queue.name, "pause", "user", PAUSED, {"paused": False}, {"paused": True})
        for act in (*weights, pause):
            if not read_entries().filter(kind="user", subject=act.subject, act=act.name).exists():
                write_entry(LOGIN, "admin", act)

    def _prepare(self) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        end_day(self._queue)  # removes the rest of a demonstration that was killed
        accounts = get_user_model().objects
        if not accounts.filter(username=LOGIN).exists():
            operator = accounts.create_superuser(LOGIN, password=LOGIN)
            if settings.DEMO_HOST:  # strangers log in, and may look
                views = Permission.objects.filter(codename__startswith="view_")
                operator.user_permissions.set(views.filter(content_type__app_label__in=("django_fairque", "library")))
                operator.is_superuser = False
                operator.save()
        server = self._queue.health().server
        count = sum(map(len, self._files.values()))
        self._say(f"{server['name']} {server['version']}, {plural(self._processes, 'worker process', 'es')}")
        self._say(f"{plural(count, 'source file')} of {plural(len(self._files), 'user')} in {self._root}")

    def _send(self) -> Iterator[list[str]]:
        """The ids of everybody's tasks, slice by slice: the greediest first, the worst that the others can meet."""
        if self._noisy:
            yield from send_errands(NOISY, self._noisy)
            yield from send_nightly_job(self._noisy // NIGHTLY_PART)
        for owner, files in self._files.items():
            yield from load_files(owner, files, self._root)
            if self._noisy:
                yield [send_code.enqueue(owner).id]

    def _send_pipelines(self) -> Iterator[list[str]]:
        """The ids of the tasks of each package's pipeline, run by run as they are sent."""
        for owner, files in self._files.items():
            run = package_pipeline(owner, store_files(owner, files, self._root)).enqueue()
            yield [result.id for result in run.results]

    def _check(self, runs: Sequence[ServedTask], sent: Sequence[str], began: datetime) -> None:
        of_now = Document.objects.filter(owner__in=self._files, queued_at__gte=began)
        missing = of_now.exclude(status=Document.Status.ANALYSED).defer("text")
        if len(runs) == len(sent) and not missing:
            return
        named = "".join(f"\n  {document} ({document.status})" for document in missing[:MOST_NAMED])
        raise IncompleteError(
            f"{len(sent) - len(runs):,} of {len(sent):,} tasks did not finish, {plural(len(missing), 'document')} "
            f"were not analysed; manage.py fairque_dlq shows the dead letters{named}"
        )

    def _tell(self, runs: Sequence[ServedTask]) -> None:
        users = report.waits_by_user(runs, self._processes)
        self._say(
            "\nHow long each user's tasks waited, and would have waited first come, first served (FCFS: the same\n"
            f"arrivals and run times, replayed through the same {plural(self._processes, 'process', 'es')}):"
        )
        for line in ["", *report.table(users), "", report.summary(users)]:
            self._say(line)

    def _invite(self) -> None:
        manage = f"{'uv run' if 'UV' in os.environ else 'python'} {sys.argv[0]}"
        self._say(
            f"\nThe documents are in the admin: {manage} runserver\n"
            f"then http://127.0.0.1:8000/admin/ as {LOGIN!r} with the password {LOGIN!r}."
        )

    def _say(self, text: str) -> None:
        self._out.write(text)


def open_browser(address: str) -> None:
    """Show a page in the desktop's browser; do nothing where there is none, or only one that needs the terminal."""
    try:
        found = webbrowser.get()
        if type(found) is not webbrowser.GenericBrowser:
            found.open(address)
    except webbrowser.Error:
        pass


def find_files(root: Path, only: Sequence[str]) -> dict[str, list[Path]]:
    """The source files of each package, most first.

    Raises
    ------
    NoSourcesError
        There are none, or none of a package that was asked for.
    """
    found = packages(root, only)
    if unknown := [name for name in only if name not in found]:
        raise NoSourcesError(
            f"no source files of {', '.join(unknown)} in {root}; expected packages such as email, json"
        )
    if not found:
        raise NoSourcesError(f"no source files in {root}: this Python was installed without those of its library")
    return found
