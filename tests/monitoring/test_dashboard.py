"""What docs/reference/metrics-and-signals.md and the Grafana dashboard name is what is exported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from django.urls import reverse
from prometheus_client.parser import text_string_to_metric_families

from django_fairque.monitoring.prometheus import WORKER_FAMILIES, exposition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from pytest_django import Settings
    from redis import Redis

    from tests.servers import Server

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "reference" / "metrics-and-signals.md").read_text()
GUIDE = (DOCS / "guides" / "monitoring.md").read_text()
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
SELECTOR = re.compile(r"(fairque_\w+)(?:\{([^}]*)\})?")


@pytest.fixture
def exported(server: Server, redis: Redis, settings: Settings) -> list[Metric]:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    """All, as a worker tells them."""
    content, _ = exposition("", lambda: dict.fromkeys(WORKER_FAMILIES, 1.0))
    return list(text_string_to_metric_families(content.decode()))


@pytest.fixture
def labels(exported: list[Metric]) -> dict[str, set[str]]:
    """Those of each sample's name."""
    found: dict[str, set[str]] = {}
    for family in exported:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def wrong_names(expression: str, labels: dict[str, set[str]]) -> Iterator[str]:
    """What the expression names that is not exported, of metrics and of labels."""
    for name, selector in SELECTOR.findall(expression):
        if name not in labels:
            yield name
        for label in re.findall(r"(\w+)\s*[=!]", selector):
            if label not in labels.get(name, set()) | {"job", "instance"}:
                yield f"{name}{{{label}}}"
    outer = set(re.findall(r"\bby \(([^)]*)\)", expression))
    known = set().union(*(labels.get(name, set()) for name, _ in SELECTOR.findall(expression)))
    yield from (
        each for organization in outer for each in organization.split(", ") if each not in known | {"job", "instance"}
    )


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_the_dashboard_names_what_is_exported(labels: dict[str, set[str]], title: str, expression: str) -> None:
    assert list(wrong_names(expression, labels)) == []


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("sum(fairque_task)", "fairque_task"),
        ('max(fairque_tasks{stat="queued"})', "fairque_tasks{stat}"),
        ("sum by (user) (fairque_tasks)", "user"),
    ],
)
def test_a_wrong_name_is_found(labels: dict[str, set[str]], expression: str, wrong: str) -> None:
    assert list(wrong_names(expression, labels)) == [wrong]


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_the_dashboard_counts_no_queue_twice(labels: dict[str, set[str]], title: str, expression: str) -> None:
    """Every instance tells the same of a queue: that is never added up; and the chosen queues are the only ones."""
    assert expression.count("(") == expression.count(")")
    for name, selector in SELECTOR.findall(expression):
        assert 'job="$job"' in selector
        assert ('queue=~"$queue"' in selector) == ("queue" in labels[name])
    innermost = re.findall(r"(\w+)(?: by \([^)]*\))? \(?(?:\()?(?:rate|increase)?\(?fairque_", expression)
    assert set(innermost) <= ({"sum"} if "fairque_worker_" in expression else {"max", "min"})
    if "rate(" in expression or "increase(" in expression:
        assert expression.count("[$__rate_interval]") == len(re.findall(r"(?:rate|increase)\(", expression))
        assert all(name.endswith(("_total", "_bucket")) for name, _ in SELECTOR.findall(expression))


def test_the_dashboard_can_be_used_with_any_source() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "job", "queue"}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert variables["queue"]["multi"]
    assert variables["queue"]["includeAll"]
    for each in [
        *PANELS,
        *(target for panel in PANELS for target in panel["targets"]),
        variables["job"],
        variables["queue"],
    ]:
        assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_the_panels_have_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


WANTED = (
    *("tasks_finished_total", 'state="queued"', 'state="started"', "oldest_wait_seconds", "workers", "dead_letters"),
    *("task_wait_seconds_bucket", "task_run_seconds_bucket", "sla_violated_total", "server_memory_used_bytes"),
)


@pytest.mark.parametrize("part", WANTED)
def test_the_dashboard_shows_what_one_looks_for(part: str) -> None:
    assert any(part in expression for _, expression in EXPRESSIONS)


def test_every_metric_is_documented_with_its_labels(exported: list[Metric]) -> None:
    documented = re.findall(r"^\| `(fairque_\w+)` \| (.*?) \|", PAGE, re.MULTILINE)
    written = {name: set(re.findall(r"`(\w+)`", names)) for name, names in documented}
    found = {}
    for family in exported:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = set().union(*(sample.labels for sample in family.samples)) - {"queue", "le"}
    assert written == found
    without_queue = {family.name for family in exported if "queue" not in family.samples[0].labels}
    assert without_queue == {name for name, _ in documented[-10:]}


def test_the_probes_and_alert_rules_of_the_page_name_what_is_exported(labels: dict[str, set[str]]) -> None:
    found = re.findall(r"```yaml\n(.*?)```", GUIDE + PAGE, re.DOTALL)
    probes, scrape, rules = (yaml.safe_load(each) for each in found)
    assert probes["livenessProbe"]["httpGet"]["path"] == reverse("fairque:live")
    assert probes["readinessProbe"]["httpGet"]["path"] == reverse("fairque:ready")
    assert scrape["scrape_configs"][0]["metrics_path"] == reverse("fairque:metrics")
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert len(expressions) == 6
    assert [wrong for each in expressions for wrong in wrong_names(each, labels)] == []


def test_the_example_of_the_page_works(exported: list[Metric]) -> None:
    collector, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(collector, names)
    registry: CollectorRegistry = names["registry"]
    assert registry.get_sample_value("fairque_server_up") == 1
