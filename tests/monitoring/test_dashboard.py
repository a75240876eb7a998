"""Tests that the metrics in docs/reference/metrics-and-signals.md and in the Grafana dashboard are exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.urls import reverse
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from django_fairque.monitoring.prometheus import WORKER_FAMILIES, exposition
from tests.fixture_types import Redis, Server, Settings

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
    """All metrics, as a worker exports them."""
    content, _ = exposition("", lambda: dict.fromkeys(WORKER_FAMILIES, 1.0))
    return list(text_string_to_metric_families(content.decode()))


@pytest.fixture
def labels(exported: list[Metric]) -> dict[str, set[str]]:
    """Return the labels of each sample name."""
    found: dict[str, set[str]] = {}
    for family in exported:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def wrong_names(expression: str, labels: dict[str, set[str]]) -> Iterator[str]:
    """Return the metrics and labels of the expression that are not exported."""
    for name, selector in SELECTOR.findall(expression):
        if name not in labels:
            yield name
        for label in re.findall(r"(\w+)\s*[=!]", selector):
            if label not in labels.get(name, set()) | {"job", "instance"}:
                yield f"{name}{{{label}}}"
    outer = set(re.findall(r"\bby \(([^)]*)\)", expression))
    known = set().union(*(labels.get(name, set()) for name, _ in SELECTOR.findall(expression)))
    yield from (label for labels in outer for label in labels.split(", ") if label not in known | {"job", "instance"})


def test_the_dashboard_names_only_exported_metrics(labels: dict[str, set[str]]) -> None:
    assert [(title, name) for title, expression in EXPRESSIONS for name in wrong_names(expression, labels)] == []


def test_the_dashboard_and_the_rules_have_figures_of_lanes_users_and_task_names() -> None:
    for name in ("fairness_index", "active_users", "noisy_users", "quiet_users_oldest_wait_seconds"):
        assert f"fairque_{name}" in str(EXPRESSIONS)
    for name in ("lane_wait_seconds", "lane_tasks_started_total", "task_attempts_total", "task_failures_total"):
        assert f"fairque_{name}" in str(EXPRESSIONS)
    for name in ("sla_kept_tasks_total", "task_release_slowdown", "task_release_failures"):
        assert f"fairque_{name}" in str(EXPRESSIONS)
    for name in ("fairness_index", "quiet_users_oldest_wait_seconds", "lane_wait_seconds", "task_failures_total"):
        assert f"fairque_{name}" in PAGE.partition('id="alerts"')[2]


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("sum(fairque_task)", "fairque_task"),
        ('max(fairque_tasks{stat="queued"})', "fairque_tasks{stat}"),
        ("sum by (user) (fairque_tasks)", "user"),
    ],
)
def test_a_wrong_name_in_an_expression_is_found(labels: dict[str, set[str]], expression: str, wrong: str) -> None:
    assert list(wrong_names(expression, labels)) == [wrong]


def test_the_dashboard_counts_no_queue_twice(labels: dict[str, set[str]]) -> None:
    """Every instance exports the same figures of a queue, so they are never added up; only the chosen queues are shown."""
    for title, expression in EXPRESSIONS:
        assert expression.count("(") == expression.count(")"), title
        for name, selector in SELECTOR.findall(expression):
            assert 'job="$job"' in selector, title
            assert ('queue=~"$queue"' in selector) == ("queue" in labels[name]), title
        innermost = re.findall(r"(\w+)(?: by \([^)]*\))? \(?(?:\()?(?:rate|increase)?\(?fairque_", expression)
        assert set(innermost) <= ({"sum"} if "fairque_worker_" in expression else {"max", "min"}), title
        if "rate(" in expression or "increase(" in expression:
            assert expression.count("[$__rate_interval]") == len(re.findall(r"(?:rate|increase)\(", expression)), title
            assert all(name.endswith(("_total", "_bucket")) for name, _ in SELECTOR.findall(expression)), title


def test_every_metric_is_documented_with_its_labels(exported: list[Metric]) -> None:
    documented = re.findall(r"^\| `(fairque_\w+)` \| (.*?) \|", PAGE, re.MULTILINE)
    written = {name: set(re.findall(r"`(\w+)`", names)) for name, names in documented}
    found = {}
    for family in exported:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = set().union(*(sample.labels for sample in family.samples)) - {"queue", "le"}
    assert written == found
    without_queue = {family.name for family in exported if "queue" not in family.samples[0].labels}
    assert without_queue == {name for name, _ in documented[-11:]}


def test_the_probes_and_alert_rules_of_the_page_name_only_exported_metrics(labels: dict[str, set[str]]) -> None:
    found = re.findall(r"```yaml\n(.*?)```", GUIDE + PAGE, re.DOTALL)
    probes, scrape, rules = map(yaml.safe_load, found)
    assert probes["livenessProbe"]["httpGet"]["path"] == reverse("fairque:live")
    assert probes["readinessProbe"]["httpGet"]["path"] == reverse("fairque:ready")
    assert scrape["scrape_configs"][0]["metrics_path"] == reverse("fairque:metrics")
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert len(expressions) == 14
    assert [wrong for expression in expressions for wrong in wrong_names(expression, labels)] == []


def test_the_example_of_the_page_works(exported: list[Metric]) -> None:
    collector, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(collector, names)
    registry: CollectorRegistry = names["registry"]
    assert registry.get_sample_value("fairque_server_up") == 1
