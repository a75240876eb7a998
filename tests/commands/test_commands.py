"""Each command on a real queue: what it prints, what it changes, how it fails."""

from __future__ import annotations

import json
import time
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_fairque.engine.model.records import TaskState
from tests.fixture_types import FairQueue, Redis, Settings
from tests.leases import pop

from .conftest import COMMANDS, Bury, Push, Run, parser_of


def test_check_names_each_violation_and_exits_with_1(push: Push, redis: Redis, run: Run) -> None:
    task_id = push()
    assert run("fairque_check") == "queue 'default': no violation (1 queued)\n"
    redis.zrem("fq:{default:0}:state:queued", task_id)
    out = StringIO()
    with pytest.raises(SystemExit) as stop:
        call_command("fairque_check", stdout=out, no_color=True)
    assert (stop.value.code, f"task:{task_id}" in out.getvalue()) == (1, True)
    assert "1 violation" in out.getvalue()


WITH_ACTIONS = [command for command in COMMANDS if "ACTION ..." in parser_of(command).format_usage()]


@pytest.mark.parametrize("command", WITH_ACTIONS)
def test_a_queue_may_be_named_before_or_after_the_action(command: str, queue: FairQueue, run: Run) -> None:
    for words in (["--queue", "nixda", "list"], ["list", "--queue", "nixda"]):
        with pytest.raises(CommandError, match="queue 'nixda' is not declared"):
            run(command, *words)
    run(command, "list")


def test_every_action_of_a_command_takes_the_name_of_a_queue(queue: FairQueue, run: Run, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUES": {"mail": {}}}
    run("fairque_user", "pause", "ann", "--queue", "mail", "--create")
    run("fairque_user", "--queue", "mail", "weight", "ann", "2")
    assert "paused" in run("fairque_user", "list", "--queue", "mail")
    assert "ann" not in run("fairque_user", "list")
    for command in WITH_ACTIONS:
        (actions,) = (action.choices for action in parser_of(command)._actions if action.dest == "action")
        for name, action in actions.items():
            assert "--queue NAME" in action.format_usage(), f"{command} {name}"


def test_users_are_listed_with_their_counts_and_limits(queue: FairQueue, run: Run, push: Push) -> None:
    push()
    push("quiet\n*")
    run("fairque_user", "weight", "acme", "2.5")
    run("fairque_user", "limit", "acme", "--running", "3", "--rate", "100/m", "--backlog", "50")
    run("fairque_user", "pause", "quiet\n*")
    lines = run("fairque_user", "list").splitlines()
    assert lines[1].split() == ["acme", "1", "0", "0", "0", "-", "2.5", "3", "100/60s"]
    assert lines[2].split() == ["quiet\\n*", "0", "0", "0", "0", "-", "1", "-", "-", "paused,", "1", "held", "back"]
    assert queue.pop("w", ["quiet\n*"]) is None
    run("fairque_user", "resume", "quiet\n*")
    assert queue.pop("w", ["quiet\n*"]) is not None
    run("fairque_user", "limit", "acme", "--running", "none")
    assert queue.user("acme").stats().max_running is None


def test_a_pause_may_have_a_note_and_an_end(queue: FairQueue, run: Run) -> None:
    note = "too\nmany \x1b[31m mails"
    run("fairque_user", "pause", "acme", "--create", "--note", note, "--until", "2100-01-02T03:04Z")
    end = "until 2100-01-02 03:04:00Z (too many \\x1b[31m mails)"
    assert run("fairque_user", "list").splitlines()[1].endswith(f"  paused {end}")
    assert f"PAUSED {end}\n" in run("fairque_stats", "--user", "acme")
    assert json.loads(run("fairque_user", "list", "--json"))["pause"]["until"] == 4102542240
    run("fairque_organization", "pause", "shop", "--for", "2h")
    pause = queue.organization("shop").stats().pause
    assert pause is not None
    assert pause.until == pytest.approx(time.time() + 7200, abs=60)
    queue.pause(note="maintenance")
    assert run("fairque_stats").startswith("queue 'default', PAUSED (maintenance): ")


@pytest.mark.parametrize(
    "action", [["pause"], ["resume"], ["weight"], ["organization"], ["limit", "--running", "1"], ["purge"]]
)
def test_a_user_who_does_not_exist_is_reported(queue: FairQueue, run: Run, action: list[str]) -> None:
    name, *options = action
    words = [name, "typo", *{"weight": ["2"], "organization": ["g"]}.get(name, []), *options]
    with pytest.raises(CommandError, match=r"queue 'default' has no user 'typo'; nothing was changed.* add --create"):
        run("fairque_user", *words)
    assert queue.users().items == []
    if name != "purge":
        run("fairque_user", *words, "--create")
        assert queue.user("typo").is_known() or name == "resume"


def test_an_organization_is_guaranteed_a_share(queue: FairQueue, run: Run) -> None:
    assert run("fairque_organization", "share", "acme", "0.2").splitlines()[1].split() == [
        "acme",
        "0",
        "0",
        "0",
        "1",
        "20",
        "%",
        "-",
    ]
    with pytest.raises(
        CommandError, match=r"a share is a number, as 0\.2 for a fifth, or 'none' for no limit, got 'half'"
    ):
        run("fairque_organization", "share", "acme", "half")
    with pytest.raises(CommandError, match=r"'bolt' 0\.8, 'acme' 0\.2"):
        run("fairque_organization", "share", "bolt", "0.8")
    assert '"share": 0.2' in run("fairque_organization", "list", "--json")
    run("fairque_organization", "share", "acme", "none")
    assert queue.organization("acme").stats().share is None


def test_organizations_are_listed_with_their_counts_and_limits(queue: FairQueue, run: Run, push: Push) -> None:
    push()
    shown = run("fairque_user", "organization", "acme", "a b\n").splitlines()
    assert shown[1].endswith("  organization 'a b\\n'")
    run("fairque_organization", "weight", "a b\n", "2.5")
    run("fairque_organization", "limit", "a b\n", "3")
    run("fairque_organization", "pause", "quiet")
    assert run("fairque_organization", "list").splitlines() == [
        "organization  members  with work  running  weight  at least  at once",
        "a b\\n               1          1        0     2.5         -        3",
        "quiet               0          0        0       1         -        -  paused",
    ]
    assert "user 'acme': weight 1, organization 'a b\\n' of weight 2.5\n" in run("fairque_stats", "--user", "acme")
    run("fairque_organization", "limit", "a b\n", "1")
    pop(queue, "w", ["acme"])
    assert "of weight 2.5, full\n" in run("fairque_stats", "--user", "acme")
    run("fairque_organization", "pause", "a b\n")
    assert "of weight 2.5, PAUSED\n" in run("fairque_stats", "--user", "acme")
    push("other")
    run("fairque_user", "organization", "bolt", "a b\n", "--create")
    lines = run("fairque_user", "list", "--organization", "a b\n").splitlines()
    assert [line.split()[0] for line in lines] == ["user", "acme", "bolt"]
    assert lines[1].endswith("  organization 'a b\\n'")
    assert len(run("fairque_user", "list", "--organization", "nobody").splitlines()) == 1
    run("fairque_organization", "limit", "a b\n", "none")
    assert queue.organization("a b\n").stats().max_running is None
    run("fairque_organization", "resume", "quiet")
    run("fairque_user", "organization", "acme")
    assert queue.user("acme").stats().organization is None
    assert queue.organizations().items == ["a b\n"]


def test_a_purge_cancels_the_waiting_tasks_of_a_user(queue: FairQueue, run: Run, push: Push) -> None:
    ids = [push(), push(execute_after=4e9)]
    assert run("fairque_user", "purge", "acme") == "2 tasks of 'acme' canceled\n"
    assert {queue.get_task(task_id).state for task_id in ids} == {TaskState.CANCELED}


def test_dead_letters_are_listed_shown_and_requeued(queue: FairQueue, run: Run, bury: Bury) -> None:
    entry, other = bury(), bury(user="bolt")
    listed = run("fairque_dlq", "list")
    for words in (entry, other, "2 dead letters in queue 'default'"):
        assert words in listed
    assert entry not in run("fairque_dlq", "list", "--user", "bolt")
    run("fairque_dlq", "requeue", entry, "--payload", '{"n":2}')
    assert queue.get_task(entry[:-2]).payload == {"n": 2}
    assert run("fairque_dlq", "requeue", "--all", "--yes", "--type", "failed") == "1 requeued\n"
    assert queue.dlq.count() == 0


def test_dead_letters_can_be_discarded_and_removed_by_age_by_command(queue: FairQueue, run: Run, bury: Bury) -> None:
    entry = bury()
    bury()
    run("fairque_dlq", "discard", entry)
    assert queue.get_task(entry[:-2]).state is TaskState.CANCELED
    assert run("fairque_dlq", "cleanup", "--older-than", "1d") == "0 dead letters forgotten\n"
    assert run("fairque_dlq", "cleanup", "--older-than", "0s") == "1 dead letter forgotten\n"


def test_stats_are_a_readable_table_or_json(queue: FairQueue, run: Run, bury: Bury, push: Push) -> None:
    push()
    bury()
    assert json.loads(run("fairque_stats", "--json"))["states"]["failed"] == 1
    table = run("fairque_stats")
    for words in ("1 user ready", "queued 1", "dead     failed 1", "last hour  count", "SLA      at risk 0", "edges 0"):
        assert words in table
    queue.user("acme").set_sla(60)
    assert "user 'acme': weight 1, SLA 1 min" in run("fairque_stats", "--user", "acme")
    assert json.loads(run("fairque_stats", "--user", "acme", "--json"))["sizes"]["normal"] == 1


def test_the_health_of_a_server_that_is_gone_is_down(settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": "unix:///nonexistent/s.sock"}, "QUEUE": {"REQUEST_TIMEOUT": 0}}
    out = StringIO()
    with pytest.raises(SystemExit) as stop:
        call_command("fairque_health", "--json", stdout=out)
    assert (stop.value.code, json.loads(out.getvalue())["status"]) == (2, "down")


ALWAYS_ANSWER = {"fairque_health", "fairque_docs", "fairque_config"}


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - ALWAYS_ANSWER))
@pytest.mark.django_db(databases=["default", "other"])
def test_a_mistake_in_the_configuration_is_reported_by_every_command(
    run: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": "redis://127.0.0.1:1"}}
    monkeypatch.setenv("FAIRQUE_WORKER__PROCESSES", "x")
    words = {"fairque_reshard": "--shards 2", "fairque_server": "status"}
    with pytest.raises(CommandError, match="FAIRQUE_WORKER__PROCESSES: expected a whole number"):
        run(command, *words.get(command, "list" if command in WITH_ACTIONS else "").split())
