"""Charts are well-formed SVG whatever they are given, and say in words what they show."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from django.template import Context, Template
from django.utils import translation

from django_fairque.admin.charts import Bar, Bars, LineChart, Series, Sparkline, find_round_maximum, path, printable
from django_fairque.engine.statistics.deployments import Deployment
from django_fairque.monitoring import formatting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_django import Settings

SVG = "{http://www.w3.org/2000/svg}"
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


def drawn(tag: str, chart: Any) -> ET.Element:
    """What a tag writes, read as XML: nothing of it may be malformed."""
    text = Template("{% load fairque_admin %}{% " + tag + " chart %}").render(Context({"chart": chart}))
    root = ET.fromstring(f"<div>{text}</div>")
    assert {each.tag for each in root.iter()}.isdisjoint({"script", f"{SVG}script"})
    attributes = {name for each in root.iter() for name in each.attrib}
    assert not {name for name in attributes if name == "style" or name.startswith("on")}
    return root


def words(root: ET.Element) -> str:
    return " ".join("".join(root.itertext()).split())


def lines(*values: Sequence[float | None], **options: Any) -> LineChart:
    times = [1_800_000_000 + 60 * index for index in range(len(values[0]) if values else 0)]
    series = [Series(f"series {number}", each) for number, each in enumerate(values, 1)]
    return LineChart("c", "Chart", times, series, **options)


def coordinates(root: ET.Element) -> list[float]:
    return [float(each) for node in root.iter(f"{SVG}path") for each in re.findall(r"-?[\d.e+]+", node.attrib["d"])]


VALUES: list[list[float | None]] = [
    [],
    [3],
    [None],
    [0, 0, 0],
    [None, None, 4, None],
    [1e300, 2],
    [1e-9, 0],
    [math.inf, 1],
    [math.nan, -5, 2],
    [1, 2, None, 4],
]


@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize("tag", ["line_chart", "sparkline", "bars"])
def test_any_value_stays_inside_the_picture(tag: str, values: list[float | None]) -> None:
    charts = {
        "line_chart": lines(values, values),
        "sparkline": Sparkline("Chart", values),
        "bars": Bars("Chart", "User", [Bar(f"u{at}", value or 0) for at, value in enumerate(values)]),
    }
    found = coordinates(drawn(tag, charts[tag]))
    assert all(0 <= each <= 1000 for each in found)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_label_is_only_ever_text(text: str) -> None:
    series = [Series(text, [1.0, 2.0])]
    line = drawn("line_chart", LineChart("c", "Chart", [0, 60], series))
    bars = drawn("bars", Bars("Chart", "User", [Bar(text, 1, f"?user={'x'}")]))
    visible = re.sub("[\x00-\x1f\ud800\uffff]", "\ufffd", text)
    visible = visible if len(visible) <= 60 else visible[:59] + "…"
    assert "".join(bars.find(".//tbody//a").itertext()) == visible  # type: ignore[union-attr]
    assert visible in "".join(line.itertext())


@pytest.mark.parametrize(
    ("tag", "chart"),
    [
        ("line_chart", lines([1, 7, 2], [None, None, None])),
        ("sparkline", Sparkline("Chart", [1, 7, 2])),
        ("bars", Bars("Chart", "User", [Bar("u", 7)])),
    ],
)
def test_it_has_a_role_a_title_and_a_description(tag: str, chart: Any) -> None:
    root = drawn(tag, chart)
    image = next(each for each in root.iter(f"{SVG}svg") if each.get("role") == "img")
    title, description = image.find(f"{SVG}title"), image.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert title.text in ("Chart", "u")
    assert "7" in (description.text or "")
    ids = [each.attrib["id"] for each in root.iter() if "id" in each.attrib]
    assert len(ids) == len(set(ids))
    for named in (image.get("aria-labelledby") or "").split():
        assert named in ids


def test_lines_say_what_they_show_and_have_their_figures_beside_them(settings: Settings) -> None:
    settings.TIME_ZONE = "UTC"
    root = drawn("line_chart", lines([1, 7, None], [0.5, None, None], say=formatting.duration))
    text = words(root)
    assert "series 1: at most 7 s, 7 s at last; series 2: at most 500 ms, 500 ms at last" in text
    rows = [["".join(cell.itertext()).strip() for cell in row] for row in root.iter("tr")]
    assert rows[0] == ["From", "series 1", "series 2"]
    assert [row[1:] for row in rows[1:]] == [["–", "–"], ["7 s", "–"], ["1 s", "500 ms"]]
    assert rows[1][0] == "2027-01-15 08:02:00"
    assert [node.text for node in root.iter(f"{SVG}text")] == ["10 s", "5 s", "0 s", "08:00", "08:01", "08:02"]
    assert root.find(".//details[@id]") is not None, "or a refresh closes it"


def test_without_anything_it_says_so() -> None:
    assert "Nothing happened" in words(drawn("line_chart", lines([None, None])))
    assert "Nothing happened" in words(drawn("sparkline", Sparkline("Chart", [])))
    assert "series 2: nothing" in words(drawn("line_chart", lines([1], [None])))
    assert lines().moments == []
    assert lines().rows == []


def test_a_gap_parts_a_line_and_a_lone_value_is_a_dot() -> None:
    assert path([0, 1, None, 2, None], 2) == "M0 100L250 50 M750 0h0"
    assert path([1], 1) == "M500 0h0"
    assert path([1, 3], 0) == "M0 100L1000 100"


def test_positions_are_written_as_svg_reads_them_in_every_language(settings: Settings) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    with translation.override("de"):
        root = drawn("line_chart", lines([1, 2, 3]))
        bar = drawn("bars", Bars("Chart", "User", [Bar("u", 1), Bar("v", 3)]))
    assert all("," not in node.attrib["d"] for node in [*root.iter(f"{SVG}path"), *bar.iter(f"{SVG}path")])


def test_a_bar_is_as_long_as_its_value() -> None:
    first, second = Bars("Chart", "User", [Bar("u", 0.1), Bar("v", 0.4)], say=formatting.share).drawn
    assert (first["width"], first["value"], first["description"]) == ("250", "10 %", "u: 10 %")
    assert second["width"] == "1000"


EDGES = [(0, 1), (-1, 1), (3, 4), (41, 100), (0.7, 1), (999, 1000), (1001, 2000)]
EDGES_OF_TIMES = [(0.0011, 0.002), (41, 60), (3000, 3600), (86_401, 100_000)]


@pytest.mark.parametrize(("value", "edge"), EDGES)
def test_the_upper_edge_is_a_round_number(value: float, edge: float) -> None:
    assert find_round_maximum(value) == pytest.approx(edge)


@pytest.mark.parametrize(("value", "edge"), EDGES_OF_TIMES)
def test_the_upper_edge_of_times_is_a_round_time(value: float, edge: float) -> None:
    assert find_round_maximum(value, is_time=True) == pytest.approx(edge)


@pytest.mark.parametrize("text", HOSTILE)
def test_deployments_are_marked_where_they_were(settings: Settings, text: str) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    begin = 1_800_000_000
    moments = [begin - 1, begin, begin + 30, begin + 500, 1e10]
    chart = lines([1, 2, 3], deployments=[Deployment(text, at) for at in moments])
    root = drawn("line_chart", chart)
    marks = [each for each in root.iter(f"{SVG}path") if each.get("class") == "fq-mark" and len(each)]
    assert [each.attrib["d"] for each in marks] == ["M0 0V100", "M250 0V100", "M998 0V100", "M998 0V100"]
    titles = ["".join(each.itertext()) for each in marks]
    assert titles[0] == f"deployment {printable(text)}, 17:00"
    assert all(len(each) < 90 for each in titles)
    listed = ["".join(each.itertext()) for each in root.findall(".//details/ul/li")]
    assert listed == titles
    (figure,) = root.iter("figure")
    data = json.loads(figure.attrib["data-chart"])["marks"]
    assert data == [
        [at, title] for at, title in zip([begin, begin + 30, begin + 120, begin + 120], titles, strict=True)
    ]


def test_deployments_before_the_chart_need_no_legend() -> None:
    assert "Deployment" in words(drawn("line_chart", lines([1, 2], deployments=[Deployment("a", 1_800_000_001)])))
    for values in ([1, 2], []):
        assert "eployment" not in words(
            drawn("line_chart", lines(values, deployments=[Deployment("a", 1_799_999_999)]))
        )


def test_the_script_is_given_what_the_image_shows(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    root = drawn("line_chart", lines([1, math.inf, 2], [None, -3, math.nan], say=formatting.duration))
    (figure,) = root.iter("figure")
    assert json.loads(figure.attrib["data-chart"]) == {
        "times": [1_800_000_000, 1_800_000_060, 1_800_000_120],
        "zone": "Asia/Tokyo",
        "dated": False,
        "top": 2,
        "levels": [[0, "0 s"], [1, "1 s"], [2, "2 s"]],
        "marks": [],
        "series": [
            {"label": "series 1", "values": [1, None, 2], "texts": ["1 s", None, "2 s"]},
            {"label": "series 2", "values": [None, 0, None], "texts": [None, "0 s", None]},
        ],
    }


def test_a_week_has_dates_below_it(settings: Settings) -> None:
    settings.TIME_ZONE = "UTC"
    chart = LineChart("c", "Chart", [1_800_000_000, 1_800_000_000 + 6 * 86_400], [Series("s", [1, 2])])
    assert [label for _x, _anchor, label in chart.moments] == ["01-15 08:00", "01-15 08:00", "01-21 08:00"]
