"""Charts show any values and texts: as a sentence for each line, as data for the script, and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from django.template.loader import render_to_string
from django.utils import translation

from django_fairque.admin.charts import LineChart, draw_charts, draw_strip, find_round_maximum, printable
from django_fairque.engine.statistics.deployments import Deployment
from django_fairque.monitoring import formatting
from tests.fixture_types import Settings

BEGIN = 1_800_000_000
HOSTILE = [
    "<script>alert(1)</script>",
    "\" onload='x'",
    "]]>&amp;<!--",
    "a\x00\x01\x1b\ud800\uffff",
    "x" * 5000,
    "%(label)s %s {{ x }} {% load x %}",
    "",
    "\u202e\u05d0",
]


def lines(*values: Sequence[float | None], **options: Any) -> LineChart:
    return LineChart("Chart", {f"line {number}": line for number, line in enumerate(values, 1)}, **options)


def drawn(*charts: LineChart, deployments: Sequence[Deployment] = (), step: int = 60) -> tuple[ET.Element, Any]:
    """The page's part with these charts, read as XML, and the data for the script."""
    count = len(next(iter(charts[0].lines.values())))
    context = draw_charts(charts, [BEGIN + step * index for index in range(count)], deployments)
    root = ET.fromstring(f"<div>{render_to_string('admin/django_fairque/charts.html', context)}</div>")
    (group,) = (element for element in root.iter() if element.get("class") == "fq-charts")
    return root, json.loads(group.attrib["data-charts"])


def texts(root: ET.Element, path: str) -> list[str]:
    return ["".join(element.itertext()).strip() for element in root.findall(path)]


def test_a_chart_has_a_sentence_for_each_line_and_its_values_in_the_table(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    root, data = drawn(lines([1, 7, None], [0.0005, None, None], say=formatting.duration), lines([1234, 0, 0]))
    assert texts(root, ".//figure/ul/li") == [
        "line 1: at most 7 s, 7 s at last",
        "line 2: at most 500 µs, 500 µs at last",
        "line 1: at most 1,234, 0 at last",
    ]
    assert texts(root, ".//thead/tr/th") == ["From", "Chart", "Chart", "line 1", "line 2", "line 1"]
    assert [element.get("colspan") for element in root.findall(".//thead/tr/th")][1:3] == ["2", "1"]
    assert [texts(row, "./*") for row in root.findall(".//tbody/tr")] == [
        ["2027-01-15 17:02", "–", "–", "0"],
        ["2027-01-15 17:01", "7 s", "–", "0"],
        ["2027-01-15 17:00", "1 s", "500 µs", "1,234"],
    ]
    assert texts(root, ".//caption") == ["The values of the charts. Time zone: Asia/Tokyo"]
    assert data == {
        "times": [BEGIN, BEGIN + 60, BEGIN + 120],
        "zone": "Asia/Tokyo",
        "dated": False,
        "marks": [],
        "charts": [
            {
                "levels": [[0, "0 s"], [5, "5 s"], [10, "10 s"]],
                "lines": [
                    {"label": "line 1", "values": [1, 7, None]},
                    {"label": "line 2", "values": [0.0005, None, None]},
                ],
            },
            {
                "levels": [[0, "0"], [1000, "1,000"], [2000, "2,000"]],
                "lines": [{"label": "line 1", "values": [1234, 0, 0]}],
            },
        ],
    }
    assert root.find(".//details[@id]") is not None, "or a refresh closes it"


@pytest.mark.parametrize("value", [None, math.inf, math.nan, -5, 1e300])
def test_damaged_values_of_a_chart_are_gaps(value: float | None) -> None:
    root, data = drawn(lines([1, value, 2], gap_text="Gaps: no worker."), lines([value, value, value]))
    assert [line["values"] for chart in data["charts"] for line in chart["lines"]] == [[1, None, 2], [None] * 3]
    assert texts(root, ".//figure/ul/li") == ["line 1: at most 2, 2 at last", "line 1: nothing"]
    assert texts(root, ".//figure/p") == ["Gaps: no worker."]
    assert texts(drawn(lines([1, 2], gap_text="Gaps: no worker."))[0], ".//figure/p") == []


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_names_of_deployments_are_only_text(settings: Settings, text: str) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    moments = [BEGIN - 1, BEGIN, BEGIN + 30, BEGIN + 500, 1e10]
    root, data = drawn(lines([1, 2, 3]), deployments=[Deployment(text, at) for at in moments])
    assert [at for at, _text in data["marks"]] == [BEGIN, BEGIN + 30, BEGIN + 120, BEGIN + 120]
    listed = texts(root, ".//details/ul/li")
    assert [text for _at, text in data["marks"]] == listed
    assert listed[0] == f"deployment {printable(text)}, 17:00"
    assert all(len(entry) < 90 for entry in listed)
    assert {element.tag for element in root.iter()}.isdisjoint({"script", "svg"})


def test_deployments_before_the_chart_need_no_legend() -> None:
    assert texts(drawn(lines([1]), deployments=[Deployment("a", BEGIN)])[0], ".//figure/ul/li")[1] == "Deployment"
    root, data = drawn(lines([1]), deployments=[Deployment("a", BEGIN - 1)])
    assert (data["marks"], "eployment" in "".join(root.itertext())) == ([], False)


def test_marks_of_a_chart_of_a_week_have_dates(settings: Settings) -> None:
    settings.TIME_ZONE = "UTC"
    _root, data = drawn(lines([1, 2]), deployments=[Deployment("a", BEGIN)], step=6 * 86_400)
    assert (data["dated"], data["marks"]) == (True, [[BEGIN, "deployment a, 01-15 08:00"]])


def test_numbers_for_the_script_are_the_same_in_every_language(settings: Settings) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    with translation.override("de"):
        assert drawn(lines([1234.5]))[1]["charts"][0]["lines"][0]["values"] == [1234.5]


def test_a_strip_has_a_path_for_each_color() -> None:
    assert draw_strip(["b", "b", "", "a", "b"], 5) == [("a", "M8 0h1v1h-1z"), ("b", "M5 0h2v1h-2zM9 0h1v1h-1z")]
    assert draw_strip([]) == []


EDGES = [(0, 1), (-1, 1), (3, 4), (41, 100), (0.7, 1), (999, 1000), (1001, 2000)]
EDGES_OF_TIMES = [(0.0011, 0.002), (41, 60), (3000, 3600), (86_401, 100_000)]


@pytest.mark.parametrize(("value", "edge"), EDGES)
def test_the_upper_edge_is_a_round_number(value: float, edge: float) -> None:
    assert find_round_maximum(value) == pytest.approx(edge)


@pytest.mark.parametrize(("value", "edge"), EDGES_OF_TIMES)
def test_the_upper_edge_of_times_is_a_round_time(value: float, edge: float) -> None:
    assert find_round_maximum(value, is_time=True) == pytest.approx(edge)
