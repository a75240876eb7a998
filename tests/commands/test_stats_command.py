"""``fairque_stats``: one look, many looks into a pipe and on a terminal, one user, those who wait for most."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import StringIO
from types import SimpleNamespace
from typing import IO

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.core.management.color import color_style
from django.utils import translation

from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
from django_fairque.management.commands import fairque_stats
from tests.fixture_types import FairQueue, MakeServer, Redis, Server, Settings
from tests.leases import pop, run_attempts

from .conftest import MANAGE, Run

DEADLINE = 60.0
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "fairque_stats")


def push(queue: FairQueue, user: str, n: int = 1, now: float | None = None, priority: int = 3) -> None:
    queue.push_batch([Task.create(user, priority, None) for _ in range(n)], now=now)


def test_promotions_are_counted_by_the_previous_priority(queue: FairQueue, run: Run) -> None:
    assert "moved up 0\n" in run()
    now = time.time() - 200_000
    push(queue, "u", 2, now, priority=2)
    push(queue, "u", 1, now, priority=3)
    queue.sweep(now=now + 100_000)
    assert "moved up 3 (2 from LOW, 1 from NORMAL)\n" in run()
    assert re.search(r"\n +at risk +overdue +started late\n  \w+ +\d+ +\d+ +\d+\n", run())
    assert json.loads(run("--json"))["sla"]["promoted_from"] == {"VERY_LOW": 0, "LOW": 2, "NORMAL": 1}


def test_exceeded_limits_are_shown_with_deployments(
    queue: FairQueue, run: Run, server: Server, settings: Settings
) -> None:
    push(queue, "u", 2)
    queue.heartbeat("w", {"code_version": "abc1234"})
    assert json.loads(run("--json"))["over_limit"] == []
    assert [deployment["code_version"] for deployment in json.loads(run("--json"))["deployments"]] == ["abc1234"]
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "MONITOR": {"LIMITS": {"DEPTH": 1}}}
    assert "! queue default: ready tasks 2, over 1\n" in run()
    assert json.loads(run("--json"))["over_limit"] == ["queue default: ready tasks 2, over 1"]


def test_tasks_that_a_release_made_worse_are_shown(
    queue: FairQueue, run: Run, server: Server, settings: Settings
) -> None:
    assert "releases" not in json.loads(run("--json"))
    for version, took in (("v1", 0.1), ("v2", 0.4)):
        settings.FAIRQUE = {"REDIS": {"URL": server.url}, "CODE_VERSION": version}
        run_attempts(get_queue(), "export", 40, took=took)
    assert re.search(r"\n! export: about 4.0 times slower \(.*\) since v2 \(\d\d:\d\d UTC\)\n", run())
    (found,) = json.loads(run("--json"))["releases"]
    assert (found["name"], found["before"]["release"], found["now"]["attempts"]) == ("export", "v1", 40)
    assert found["worse"].startswith("export: about 4.0 times slower")


def test_the_busiest_users_are_found_among_a_thousand_idle_users(queue: FairQueue, run: Run) -> None:
    queue.push_batch([Task.create(f"idle{i}", 3, None) for i in range(1200)])
    for lease in [*queue.pop_batch(1000, "w"), *queue.pop_batch(1000, "w")]:
        queue.finish(lease)
    push(queue, "busy", 3)
    push(queue, "a little", 2)
    lines = run("--top", "2").splitlines()[-4:]
    assert [line.split("  ")[0].rstrip() for line in lines[:3]] == ["user", "busy", "a little"]
    assert lines[3] == "of 1,000 users looked at; there are 1,202"
    top = json.loads(run("--top", "1", "--json"))["top"]
    assert (list(top["sizes"]), top["sizes"]["busy"]["normal"], top["looked_at"]) == (["busy"], 3, 1000)


def test_the_command_top_examines_all_users_of_a_small_queue(queue: FairQueue, run: Run) -> None:
    assert run("--top", "3").splitlines()[-1].split() == ["user", "ready", "running", "scheduled", "deferred"]
    push(queue, "acme")
    assert run("--top", "3").splitlines()[-1].split() == ["acme", "1", "0", "0", "0"]


def test_a_user_is_shown_with_its_settings_and_its_last_hour(queue: FairQueue, run: Run) -> None:
    now = time.time() - time.time() % 3600  # this hour by the clock counts in whole
    push(queue, "acme", 2, now, priority=6)
    queue.finish(pop(queue, now=now + 10), took=2, now=now + 12)
    user = queue.user("acme")
    user.set_max_running(3)
    user.set_max_backlog(50)
    user.set_rate("100/m")
    user.pause()
    head, sizes, *others = run("--user", "acme").splitlines()
    assert "CRITICAL 1" in sizes
    assert [head, *others] == [
        "user 'acme': weight 1, running 3, backlog 50, rate 100/60s, PAUSED",
        "held     ready tasks can't start: the user is paused",
        "ended    started 1  finished 1  dead 0",
        "times    2 s of worker time, 10 s waited and 2 s run on the average",
        "recent   2 s of worker time, 1 started, half of them within 12.6 s and 95 % within 12.6 s (last hour)",
        "period     finished  failed  dead  SLA kept  wait p50  wait p95",
        "this hour         1       0     0     100 %    12.6 s    12.6 s",
        "24 hours          1       0     0     100 %    12.6 s    12.6 s",
        "35 days           1       0     0     100 %    12.6 s    12.6 s",
    ]


def test_a_user_s_report_has_a_sentence_in_english_its_errors_and_a_file(queue: FairQueue, run: Run) -> None:
    user = "=acme\n"
    push(queue, user, 2)
    queue.finish(pop(queue, users=[user]), took=2)
    queue.fail(pop(queue, users=[user]), "password=hunter2 is wrong", retry=False)
    with translation.override("ja"):
        text = run("--user", user, "--report")
    assert re.match("Your 2 tasks that ended since .* 1 failed, at [0-9:]+ UTC.\n", text)
    assert "35 days           1       1     1" in text
    assert "password=" in text
    assert "hunter2" not in text
    rows = list(csv.DictReader(StringIO(run("--user", user, "--report", "--csv", "--since", "48h"))))
    assert {row["user"] for row in rows} == {"'=acme\\n"}
    assert [row["kind"] for row in rows] == ["hour"] * 48 + ["day"] * 35 + ["error"]
    content = json.loads(run("--user", user, "--report", "--json"))
    assert (content["user"], content["recent"]["dead_letters"]) == (user, 1)


def test_watch_prints_one_block_after_the_other_into_a_pipe(queue: FairQueue, run: Run) -> None:
    blocks = run("--watch", "0.001", "--count", "3").split("\n\n" + time.strftime("%Y-", time.gmtime()))
    assert len(blocks) == 3
    assert re.match(TIME + "\nqueue 'default'", blocks[0])
    assert "\x1b" not in "".join(blocks)
    looks = run("--watch", "0.001", "--count", "3", "--json").splitlines()
    assert [json.loads(look)["states"]["queued"] for look in looks] == [0, 0, 0]


def test_watch_continues_while_the_server_is_unreachable(run: Run, make_server: MakeServer, settings: Settings) -> None:
    server = make_server()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"REQUEST_TIMEOUT": 0}}
    assert json.loads(run("--json"))["queue"] == "default"
    server.kill()
    err = StringIO()
    assert run("--watch", "0.001", "--count", "2", "--json", err=err) == ""  # JSON's readers get nothing else
    assert err.getvalue().count("the server can't be reached") == 2
    with pytest.raises(CommandError, match="can't be reached"):
        run()


@contextmanager
def process(server: Server, stdout: int, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The command as people run it. Its looks are an hour apart: what comes, has come at once."""
    environment = {**os.environ, "FAIRQUE_REDIS__URL": server.url}
    environment.pop("PYTHONUNBUFFERED", None)
    arguments = [sys.executable, str(MANAGE), "fairque_stats", "--watch", "3600", *words]
    with subprocess.Popen(
        arguments, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, cwd=MANAGE.parent
    ) as child:
        too_late = threading.Timer(DEADLINE, child.kill)  # a reader of its output then reaches the end
        too_late.start()
        try:
            yield child
        finally:
            too_late.cancel()
            child.kill()


def interrupted(child: subprocess.Popen[str]) -> tuple[int, str]:
    child.send_signal(signal.SIGINT)
    return child.wait(DEADLINE), (child.stderr or StringIO()).read()


def test_watch_writes_into_a_pipe_at_once_and_ctrl_c_ends_it(queue: FairQueue, server: Server) -> None:
    with process(server, subprocess.PIPE) as child:
        output: IO[str] = child.stdout or StringIO()
        assert re.fullmatch(TIME + "\n", output.readline())
        assert interrupted(child) == (0, "")


def test_watch_overwrites_a_terminal_line_by_line(queue: FairQueue, server: Server) -> None:
    ours, theirs = pty.openpty()
    with process(server, theirs) as child:
        os.close(theirs)
        seen = b""
        while b"\x1b[J" not in seen:
            seen += os.read(ours, 4096)
        assert re.match(rf"\x1b\[H{TIME}\x1b\[K\r\nqueue 'default'", seen.decode())
        assert b"\x1b[2J" not in seen  # clearing the screen would flicker
        assert seen.count(b"\n") <= 23  # the terminal has 24 lines
        assert interrupted(child) == (0, "")
    os.close(ours)


def test_ctrl_c_ends_the_watch_command_soon(queue: FairQueue, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes just before a sleep does not end that sleep: one in eighty did, right after a look."""
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    # The command's own name for the module: other threads of the tests' process sleep, too.
    monkeypatch.setattr(fairque_stats, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    assert run("--watch", "3600").count("totals") == 1
    assert slept == [0.5] * 3


def test_stats_estimate_when_the_backlog_is_done(queue: FairQueue, run: Run, settings: Settings) -> None:
    settings.LANGUAGE_CODE = "ja"
    now = time.time() // 60 * 60
    push(queue, "u", 900, now - 300)
    queue.sweep(now=now - 300)
    assert "\nbacklog " not in run()
    for lease in queue.pop_batch(600, "w", lease=900, now=now - 120):
        queue.finish(lease, now=now - 119)
    assert re.search(r"\nbacklog  done in about (2 min 30 s|3 min|3 min 30 s) at [12][.\d]* tasks/s\n", run())
    assert json.loads(run("--json"))["trend"]["per_second"] == 2


def test_the_stats_list_figures_by_task_name(queue: FairQueue, run: Run) -> None:
    run_attempts(queue, "shop.mail\x1b[2J", 3, failed=1, took=0.5)
    run_attempts(queue, "", 1, took=0.5)
    head, mail, others = run("--names").splitlines()
    assert head.split() == ["name", "attempts", "failed", "share", "p50", "p95", "retrying"]
    assert re.fullmatch(r"shop\.mail\\x1b\[2J +3 +1 +33\.3 % +(\d+ ms) +\1 +0", mail)
    assert re.fullmatch(r"\(other names\) +1 +0 +0 % +(\d+ ms) +\1 +0", others)
    assert [json.loads(line)["attempts"] for line in run("--names", "--json").splitlines()] == [3, 1]


def test_the_list_of_names_is_sorted_and_limited(queue: FairQueue, run: Run, redis: Redis) -> None:
    run_attempts(queue, "mail", 9, failed=1)
    run_attempts(queue, "push", 3, failed=3)
    lines = run("--names", "--sort", "failed", "--reverse", "--limit", "1").splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["push", "1"]
    assert lines[-1] == "1 shown; there are more"
    seconds, _ = redis.time()
    for key in redis.scan_iter("*stats:attempts:[0-9]*"):  # pretend that these were recorded two hours ago
        redis.rename(key, key.decode().replace(str(seconds // 3600), str(seconds // 3600 - 2)))
    assert len(run("--names").splitlines()) == 1
    assert len(run("--names", "--since", "3h").splitlines()) == 3


def test_the_environment_variable_no_color_turns_colors_off(queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert load_command_class("django_fairque", "fairque_stats").style.ERROR("text") == "text"


def test_forced_colors_mark_warnings_and_heads_but_no_json(
    queue: FairQueue, server: Server, settings: Settings
) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "MONITOR": {"LIMITS": {"DEPTH": 1}}}
    push(queue, "u", 2)
    style = color_style(force_color=True)

    def colored(*words: str) -> list[str]:
        call_command(*words, stdout=(out := StringIO()), force_color=True)
        return out.getvalue().splitlines()

    lines = colored("fairque_stats")
    assert style.WARNING("! queue default: ready tasks 2, over 1") in lines
    assert style.MIGRATE_LABEL("last hour  count  p50  p95  p99") in lines
    assert colored("fairque_user", "list")[0].startswith("\x1b")
    assert not any("\x1b" in line for line in colored("fairque_stats", "--json"))
    with pytest.raises(SystemExit):
        call_command("fairque_health", stdout=(out := StringIO()), force_color=True)
    assert out.getvalue().startswith(style.WARNING("degraded"))


def test_the_oldest_wait_ignores_a_younger_task_that_is_checked_earlier(queue: FairQueue, run: Run) -> None:
    queue.push(Task.create("old", 3, 1, sla=5), now=time.time() - 90)
    queue.sweep()
    queue.push(Task.create("young", 3, 1, sla=5))
    assert "oldest wait 1 min 3" in run()


def test_the_slas_are_printed_as_tables_json_and_csv(run: Run, queue: FairQueue) -> None:
    queue.push(Task.create("ann", 3, None, name="late", sla=1e-6))
    queue.user("ann").pause()
    queue.sweep()
    queue.user("ann").resume()
    queue.finish(pop(queue))
    lines = [" ".join(line.split()) for line in run("--sla").splitlines()]
    assert "ann 0 1 0 % 0 0 its user was paused" in lines
    rows = json.loads(run("--sla", "--json", "--since", "2h"))["rows"]
    assert [(row["kind"], row["name"], row["causes"]) for row in rows] == [
        (kind, name, {"user_paused": 1}) for kind, name in (("lane", "normal"), ("user", "ann"), ("task", "late"))
    ]
    assert run("--sla", "--csv").splitlines()[1] == "lane,normal,0,1,0.0,0,0,user_paused"
