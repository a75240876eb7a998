"""The figures of pages that compare with other queues are those of the files that the benchmarks wrote."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from tests.lab.benchmarks.nightly import OTHER_SHARE, OURS_NORMAL, WAIT_P99
from tests.lab.benchmarks.peers import OURS, WORKER_CPU, rate_of
from tests.lab.benchmarks.peers.systems import PEERS
from tests.lab.benchmarks.table import Table
from tests.lab.benchmarks.work import KINDS, OVER_THE_BEST
from tests.tools.figures import (
    files,
    mail_waits,
    nightly_block,
    nightly_chart,
    peers_block,
    readme_block,
    results,
    users_block,
    with_figures,
    work_block,
)


@pytest.fixture
def written() -> dict[str, Any]:
    return results("peers")


def rows(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines() if row.startswith("|")]
    return {row[0].split(" ")[0]: row[1:] for row in cells[2:]}


def test_the_pages_and_the_chart_have_the_figures_of_the_files() -> None:
    old = [file.name for file, text in files().items() if file.read_text() != text]
    assert old == [], "run: python -m tests.tools.figures"


def test_each_figure_of_the_page_is_a_median_of_the_result_file(written: dict[str, Any]) -> None:
    medians = {peer["name"]: peer["median"] for peer in written["parts"]["peers"]}
    table = rows(peers_block(written))
    assert OURS in table
    for name, (_, one, two, *_) in table.items():
        assert one.split(" ")[0] == f"{medians[rate_of(name)]:,.0f}", name
        assert two.split(" ")[0] == f"{medians[rate_of(name, processes=2)]:,.0f}", name


def test_each_compared_queue_has_figures_or_is_listed_as_not_measured(written: dict[str, Any]) -> None:
    text = peers_block(written)
    (missing,) = re.findall(r"^No figures yet: (.*)\.$", text, re.MULTILINE) or [""]
    assert {name for name in PEERS if name not in rows(text)} == {
        name for name in PEERS if re.search(rf"(?:^|, ){name}(?:,|$| \()", missing)
    }


def test_a_new_result_changes_the_page(written: dict[str, Any]) -> None:
    newer = copy.deepcopy(written)
    newer["at"] = "2027-01-02T03:04:05Z"
    newer["parts"]["peers"] = [
        *(peer for peer in newer["parts"]["peers"] if not peer["name"].startswith(("ardiq", "dj-queue"))),
        {"name": rate_of("ardiq"), "unit": "/s", "median": 1e6, "values": [9e5, 1e6, 2e6]},
        {"name": f"{rate_of('ardiq')}: {WORKER_CPU}", "unit": "µs", "median": 123.4, "values": [123.4]},
    ]
    newer["details"]["peers"] |= {
        "ardiq": {"version": "9.9", "python": "3.13.0"},
        "dj-queue": {"missing": "pip cannot install it"},
    }
    text = peers_block(newer)
    assert "Measured on 2027-01-02:" in text
    assert next(iter(rows(text))) == "ardiq", "the fastest is first"
    assert "| ardiq 9.9 | 100 coroutines, Python 3.13.0 | 1,000,000 | – | 123 µs | – | – |" in text
    assert "dj-queue (pip cannot install it)" in text


def test_a_page_without_marks_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the page needs the lines"):
        with_figures("# A page\n", "peers", written)


def test_the_table_of_working_tasks_has_a_row_for_each_kind() -> None:
    found = results("work")
    medians = {part["name"]: part["median"] for part in found["parts"]["work"]}
    lines = work_block(found).splitlines()
    for kind in KINDS:
        (row,) = [line for line in lines if line.startswith(f"| {kind.name} |")]
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        ours, ratio = medians[f"{kind.name}: {OURS}"], medians[f"{kind.name}: {OVER_THE_BEST}"]
        assert float(cells[2].replace(",", "")) == pytest.approx(ours, rel=0.01)
        assert cells[-1] == f"{ratio:.3f} ×"
    assert f"load {found['load']:.1f} before" in lines[0]


def test_the_nightly_job_has_a_row_for_each_measured_queue() -> None:
    found = results("nightly")
    figures = {figure["name"]: figure["median"] for figure in found["parts"]["nightly"]}
    table = [
        [cell.strip() for cell in row.split("|")] for row in nightly_block(found).splitlines() if row.startswith("|")
    ]
    details = found["details"]["nightly"]
    assert f"The job has {details.pop('customers'):,} customers." in nightly_block(results("nightly"))
    names = [OURS, OURS_NORMAL, *(name for name, facts in details.items() if "version" in facts)]
    assert len(table) == len(names) + 2
    for name, row in zip([OURS, OURS_NORMAL], table[2:4], strict=True):
        shown, unit = row[4].split()
        assert float(shown.replace(",", "")) == pytest.approx(figures[f"{name}, {WAIT_P99}"], rel=0.01)
        assert unit == "ms"


def test_readme_shows_the_wait_of_mails_and_the_share_of_other_users() -> None:
    found = results("nightly")
    figures = {figure["name"]: figure for figure in found["parts"]["nightly"]}
    names = [OURS, "celery", "rq", "huey", "dramatiq", "django-tasks-db"]
    assert sorted(mail_waits(found)) == sorted(names)
    for number, name in enumerate(names):
        figures[f"{name}, {WAIT_P99}"]["median"] = 10.0 * (6 - number)
        figures[f"{name}, {OTHER_SHARE}"]["median"] = 0.5 if name == OURS else 0.0
    header, _, waits, shares = readme_block(found).splitlines()[:4]
    assert header == "|  | django_fairque | django-tasks-db | dramatiq | huey | rq | celery |"
    assert waits.endswith("| **60 ms** | 10 ms | 20 ms | 30 ms | 40 ms | 50 ms |")
    assert shares.endswith("| **0.5** | 0 | 0 | 0 | 0 | 0 |")
    assert "django_fairque 60 ms, django-tasks-db 10 ms, dramatiq 20 ms" in nightly_chart(found)


def test_figures_of_many_users_come_first_with_ratios_for_the_peers(
    written: dict[str, Any],
) -> None:
    table = Table("users")
    for load, rate in (("10,000 users", 9_000.0), ("one user", 18_000.0), ("ardiq", 6_000.0)):
        table.add(f"{load}: tasks/s, one worker process", [rate, rate + 100], "/s")
        if load == "10,000 users":
            table.add("  over ardiq", [1.5, 1.4], "×")
        table.add(f"{load}: server, fetch and finish", 50.0, "µs")
    database = [
        {"name": f"8 slots, two queries: {name}", "unit": "/s", "median": rate, "values": [rate]}
        for name, rate in ((OURS, 2_000.0), ("ardiq", 4_000.0))
    ]
    idle = [
        {"name": f"{name}, idle to start, p50", "unit": "ms", "median": 0.5, "values": [0.5]} for name in (OURS, "huey")
    ]
    parts = {"users": [figure.to_json() for figure in table.figures], "database": database, "idle": idle}
    details = {
        "users": {"ardiq": {"version": "1.2.0"}, "mayu": {"missing": "no Python"}},
        "idle": {"huey": {"version": "3.5"}},
    }
    text = users_block({**written, "parts": parts, "details": details})
    assert [line for line in text.splitlines() if line.startswith("| ") and "---" not in line] == [
        "|  | django_fairque, 10,000 users | django_fairque, one user | huey 3.5 | ardiq 1.2.0 |",
        (
            "| tasks/s, one worker process | 9,050 (9,000 – 9,100) | 18,050 (18,000 – 18,100) | – "
            "| 6,050 (6,000 – 6,100); ours 1.45 × |"
        ),
        "| server, fetch and finish | 50 µs | 50 µs | – | 50 µs |",
        "| 8 slots, two queries, tasks/s | 2,000 | – | – | 4,000; ours 0.5 × |",
        "| idle to start, p50, unix socket | 0.5 ms | – | 0.5 ms; ours 1 × | – |",
    ]
