"""The benchmark of a nightly job runs without peers: in a small version, and in full (slow) with its bounds."""

from __future__ import annotations

from statistics import median

import pytest

from django_fairque.engine.model.signature import DEFAULT_KEY
from tests.servers import Server
from tests.topologies import free_port

from .nightly import LONGER, OTHER_SHARE, OTHERS, SLOTS, WAIT_P99, Ours, measure, night, other_share
from .peers import ENVIRONMENTS, OURS
from .peers.systems import PEERS
from .project.settings import SECRET_KEY

JOB, MAILS = 100, 20


@pytest.fixture(autouse=True)
def signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sign with the key of the benchmarks' project, whose workers run the tasks."""
    ENVIRONMENTS.mkdir(exist_ok=True)
    monkeypatch.setattr(DEFAULT_KEY, "read", lambda: SECRET_KEY)


def test_mails_are_sent_while_the_job_runs_and_wait_less_than_it_lasts() -> None:
    with Server() as server, server.client() as client:
        queue = Ours(server, client, JOB + MAILS, server.url, users=JOB, lanes=("bulk", "urgent"), held=SLOTS)
        measured = night(queue, JOB, mails=True)
    assert measured.waits
    assert 0 < measured.waits[0] <= measured.waits[-1] < measured.seconds * 1000


def test_the_share_of_other_customers_is_measured_while_one_customer_marks_all_tasks_urgent() -> None:
    with Server() as server, server.client() as client:
        queue = Ours(server, client, 160, server.url, users=1 + OTHERS, lanes=("normal", "urgent"))
        assert other_share(queue, urgent=40, others=120, not_counted=10) > 0


@pytest.mark.slow
def test_a_nightly_job_with_real_workers_keeps_the_bounds_of_lanes() -> None:
    """Mails wait 0.3 s at most (99 %), the job takes 2 % longer at most, and marking all tasks urgent gains 5 % at most."""
    port = free_port()
    with Server("--port", str(port)) as server, server.client() as client:
        rounds = [measure(OURS, server, client, f"redis://127.0.0.1:{port}") for _ in range(5)]
    assert median(figures[WAIT_P99] for figures in rounds) <= 300
    assert median(figures[LONGER] for figures in rounds) <= 1.02
    assert 1 / median(figures[OTHER_SHARE] for figures in rounds) <= 1.05


def test_a_peer_with_urgent_tasks_names_the_page_of_its_documentation() -> None:
    urgent = [peer.urgent for peer in PEERS.values() if peer.urgent]
    assert len(urgent) >= 5
    assert all(peer.page.startswith("https://") for peer in urgent)
