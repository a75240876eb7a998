"""Commands, metrics, probes and the admin show that a node is away."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import reverse

from django_fairque.engine.queue.queue import FairQueue
from django_fairque.models import AuditEntry
from django_fairque.monitoring.health import judge_health
from django_fairque.monitoring.monitor import AlertRule, MonitorAlert, StatsMonitor
from django_fairque.monitoring.probe import Probe
from django_fairque.monitoring.prometheus import exposition
from tests.cluster.conftest import SHARDS
from tests.web.test_probes import get
from tests.worker.conftest import eventually

from .away import DEADLINE, Away, stopped


@pytest.fixture(autouse=True)
def configured(settings: Any, away: Away) -> None:
    redis = {"URL": away.url, "CLUSTER": True}
    settings.FAIRQUE = {"REDIS": redis, "QUEUE": {"SHARDS": SHARDS, "REQUEST_TIMEOUT": DEADLINE}}


def test_commands_print_a_line_about_missing_shards(queue: FairQueue, away: Away, capsys: Any) -> None:
    away.kill()
    words = f"shards {', '.join(map(str, away.shards))} can't be reached"
    call_command("fairque_stats")
    shown = capsys.readouterr()
    assert words in shown.out
    assert "away" in shown.out
    call_command("fairque_stats", "--json")
    assert json.loads(capsys.readouterr().out)["missing_shards"] == list(away.shards)
    call_command("fairque_user", "list")
    shown = capsys.readouterr()
    assert words in shown.err
    assert away.others[0] in shown.out
    with pytest.raises(SystemExit, match="1"):
        call_command("fairque_check")
    assert words in capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        call_command("fairque_health")
    assert capsys.readouterr().out.startswith("degraded")


@pytest.mark.slow
def test_metrics_show_for_each_shard_whether_it_is_up(queue: FairQueue, away: Away) -> None:
    away.kill()
    lines = exposition("")[0].decode().splitlines()
    up = {shard: f'fairque_shard_up{{queue="default",shard="{shard}"}}' for shard in range(SHARDS)}
    for shard, name in up.items():
        assert f"{name} {'0.0' if shard in away.shards else '1.0'}" in lines
    assert 'fairque_queue_up{queue="default"} 1.0' in lines
    assert f'fairque_tasks{{queue="default",state="queued"}} {len(away.others)}.0' in lines


@pytest.mark.slow
def test_probes_report_a_degraded_queue_but_do_not_fail(queue: FairQueue, away: Away) -> None:
    away.kill()
    sight = Probe(judge_health).read(within=5)
    assert sight.troubles == {}
    assert sight.readings["default"].status == "degraded"
    assert sight.readings["default"].missing_shards == away.shards


@pytest.mark.slow  # the test starts a cluster
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_ready_probe_succeeds_while_shards_are_missing(queue: FairQueue, away: Away, how: str) -> None:
    if how == "killed":
        away.kill()
        assert get("ready").status_code == 200
        return
    with stopped(away):  # each look waits a second for it, and is late on a machine that is busy elsewhere
        eventually(lambda: get("ready").status_code == 200, 20)


@pytest.mark.slow
def test_alerts_stay_while_a_shard_is_missing(queue: FairQueue, away: Away) -> None:
    alerts: list[MonitorAlert] = []
    monitor = StatsMonitor(queue, [AlertRule("depth", len(away.others))], alerts.append)
    assert [alert.state for alert in monitor.check()] == ["raised"]
    away.kill()
    assert monitor.check() == []
    away.start()
    eventually(lambda: not queue.get_stats(0).missing_shards, 20)
    queue.purge()
    assert [alert.state for alert in monitor.check()] == ["cleared"]


@pytest.mark.slow
@pytest.mark.django_db
def test_the_admin_has_a_notice_about_missing_shards(queue: FairQueue, away: Away, admin_client: Any) -> None:
    away.kill()
    notice = f"can't be reached for now: {', '.join(map(str, away.shards))}."
    for name in ("overview", "queues", "tasks", "users", "organizations", "dead_letters", "schedules", "workers"):
        page = admin_client.get(reverse(f"admin:django_fairque_{name}")).content.decode()
        assert notice in page, name
        assert "Nothing can be shown" not in page, name
    page = admin_client.get(reverse("admin:django_fairque_queues")).content.decode()
    assert page.count("can't be reached for now</td>") == len(away.shards)


@pytest.mark.slow
@pytest.mark.django_db
def test_the_admin_changes_an_organization_on_living_shards_and_names_missing_shards(
    queue: FairQueue, patient_queue: FairQueue, away: Away, admin_client: Any
) -> None:
    for user in (*away.users, *away.others):
        patient_queue.user(user).set_organization("acme")
    away.kill()
    fields = {"organization": "acme", "action": "settings", "weight": "3", "max_running": "2"}
    page = admin_client.post(reverse("admin:django_fairque_organizations"), fields, follow=True)
    away_now = f"shards {', '.join(map(str, away.shards))} of queue 'default' can't be reached"
    (message,) = [str(message) for message in page.context["messages"]]
    what = "Organization acme has weight 3 and runs at most 2 tasks at once."
    assert message.startswith(f"{what} organization 'acme' was changed without some: {away_now}")
    (entry,) = AuditEntry.objects.all()
    assert (str(entry), entry.text) == ("default: acme", message)
    away.start()
    eventually(lambda: not queue.organization("acme").stats().missing_shards, 20)
    held = [shard.organization("acme").stats() for shard in queue.shards]
    assert {settings.weight for number, settings in enumerate(held) if number in away.shards} == {1}
    admin_client.post(reverse("admin:django_fairque_organizations"), fields)
    held = [shard.organization("acme").stats() for shard in queue.shards]
    assert {(settings.weight, settings.max_running) for settings in held} == {(3, 2)}, (
        "saving again tells those that were away"
    )


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("action", "shown"), [("pause", "paused without some"), ("purge", "tasks were canceled, and not")]
)
def test_the_audit_trail_records_an_action_that_reached_only_living_shards(
    queue: FairQueue, away: Away, admin_client: Any, action: str, shown: str
) -> None:
    away.kill()
    url = f"{reverse('admin:django_fairque_queues')}?queue=default"
    page = admin_client.post(url, {"action": action, "confirm": "yes"}, follow=True)
    (message,) = [str(message) for message in page.context["messages"]]
    assert shown in message
    (entry,) = AuditEntry.objects.all()
    assert (str(entry), entry.text) == ("default", message)
