"""The history of the benchmarks keeps each run, and its chart shows them."""

from __future__ import annotations

import copy
import itertools
import re

from tests.lab.benchmarks.peers import OURS, rate_of
from tests.tools.figures import results
from tests.tools.history import PICTURE, chart, history, with_run


def test_the_newest_run_is_the_last_of_the_history() -> None:
    newest = results("peers")
    medians = {peer["name"]: peer["median"] for peer in newest["parts"]["peers"]}
    last = history()[-1]
    assert (last["at"], last["commit"], last["load"]) == (newest["at"], newest["commit"], newest["load"])
    assert last["rates"][OURS] == round(medians[rate_of(OURS, "unix socket")])
    assert len(last["rates"]) > 5


def test_a_new_benchmark_run_is_added_once() -> None:
    runs, newer = history(), copy.deepcopy(results("peers"))
    newer["at"] = "2030-01-02T03:04:05Z"
    added = with_run(runs, newer)
    assert added[:-1] == runs
    assert with_run(added, newer) == added
    assert with_run(runs, results("peers")) == runs


def test_the_chart_has_a_point_for_each_rate_and_names_the_newest() -> None:
    runs = history()
    drawn = chart(runs)
    assert len(runs) > 1
    assert drawn.count("<circle") == sum(len(run["rates"]) for run in runs)
    for name, rate in runs[-1]["rates"].items():
        assert f"{name}: {rate:,}</text>" in drawn
    assert PICTURE.read_text() == drawn, "run: python -m tests.tools.figures"


def test_a_higher_rate_is_drawn_higher() -> None:
    runs = [{"at": f"2030-01-0{day}T00:00:00Z", "load": 1.0, "rates": {OURS: 1000 * day}} for day in (1, 2, 3)]
    (line,) = re.findall(r'class="rate ours" d="M(.*?)"', chart(runs))
    points = [tuple(map(float, point.split())) for point in line.split("L")]
    assert points == sorted(points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


def test_names_in_the_chart_do_not_overlap() -> None:
    labels = re.findall(r'x="514" y="([\d.]+)"', chart(history()))
    heights = [float(label) for label in labels]
    assert len(heights) > 10
    assert all(below - above >= 15 for above, below in itertools.pairwise(heights))
