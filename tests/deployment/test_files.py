"""The files in docs/deployment/ run commands that exist, and agree with each other and with the defaults."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.urls import include, path, resolve

from django_fairque.conf import WorkerConfig
from tests.deployment import files

if TYPE_CHECKING:
    from django.core.management.base import BaseCommand

HTTP, METRICS = 8000, 9400
MARGIN = 15
"""Seconds beyond the grace period in which a worker gives back what still runs, and ends."""

urlpatterns = [path("fairque/", include("django_fairque.urls"))]
ALL = list(files.commands())
DOCS = files.FOLDER.parent


def manage_commands() -> list[Any]:
    found = [(command.where, name, arguments) for command in ALL for name, arguments in command.names]
    return [pytest.param(name, arguments, id=f"{where}-{name}") for where, name, arguments in found]


def option(where: str, name: str) -> str:
    """The value of a worker's option in the file of that name."""
    (found,) = (command.words for command in ALL if command.where == where and "fairque_worker" in command.words)
    return found[found.index(name) + 1]


def deployment(name: str) -> dict[str, Any]:
    pod: dict[str, Any] = dict(files.pods())[name]
    return pod


def container(name: str) -> dict[str, Any]:
    (found,) = deployment(name)["containers"]
    return dict(found)


@pytest.mark.parametrize(("name", "arguments"), manage_commands())
def test_commands_in_deployment_files_exist(name: str, arguments: list[str]) -> None:
    command: BaseCommand = load_command_class(get_commands()[name], name)
    command.create_parser("manage.py", name).parse_args(arguments)


def test_each_deployment_runs_a_worker_and_checks_its_health() -> None:
    of_worker = {command.where for command in ALL for name, _ in command.names if name == "fairque_worker"}
    assert of_worker == {"shop-worker.service", "compose.yaml worker", "shop-worker"}
    of_health = {command.where for command in ALL for name, _ in command.names if name == "fairque_health"}
    assert {"compose.yaml worker", "compose.yaml release", "shop-release", "shop-worker livenessProbe"} <= of_health


def test_probes_read_the_file_that_the_worker_writes() -> None:
    for where in ("compose.yaml worker", "shop-worker"):
        written = option(where, "--health-file")
        found = [
            command.words[command.words.index("--worker-file") + 1]
            for command in ALL
            if command.where.startswith(where) and "--worker-file" in command.words
        ]
        assert found
        assert set(found) == {written}
    mounts = {mount["mountPath"] for mount in container("shop-worker")["volumeMounts"]}
    assert "/run/fairque" in mounts
    assert any(mount.startswith("/run/fairque") for mount in files.compose()["services"]["worker"]["tmpfs"])
    service = files.unit(files.FOLDER / "systemd" / "shop-worker.service")["Service"]
    assert option("shop-worker.service", "--health-file").startswith(f"/run/{service['RuntimeDirectory']}/")


def test_the_stop_timeout_of_a_service_is_longer_than_the_worker_s() -> None:
    least = WorkerConfig().shutdown_timeout + MARGIN
    service = files.unit(files.FOLDER / "systemd" / "shop-worker.service")["Service"]
    assert files.seconds(service["TimeoutStopSec"]) >= least
    assert files.seconds(files.compose()["services"]["worker"]["stop_grace_period"]) >= least
    assert deployment("shop-worker")["terminationGracePeriodSeconds"] >= least


def test_systemd_sends_the_stop_signal_only_to_the_supervisor() -> None:
    service = files.unit(files.FOLDER / "systemd" / "shop-worker.service")["Service"]
    assert (service["KillMode"], service["KillSignal"], service["Restart"]) == ("mixed", "SIGTERM", "always")


def test_ports_are_the_same_in_all_deployment_files() -> None:
    assert {port["name"]: port["containerPort"] for port in container("shop-web")["ports"]} == {"http": HTTP}
    assert {port["name"]: port["containerPort"] for port in container("shop-worker")["ports"]} == {"metrics": METRICS}
    assert option("shop-worker", "--metrics-port") == option("shop-worker.service", "--metrics-port") == str(METRICS)
    assert option("shop-worker", "--metrics-host") == "0.0.0.0"
    allowed = {
        resource["metadata"]["name"]: [rule["port"] for entry in resource["spec"]["ingress"] for rule in entry["ports"]]
        for resource in files.resources()
        if resource["kind"] == "NetworkPolicy" and "ingress" in resource["spec"]
    }
    assert allowed == {"shop-web": [HTTP], "shop-worker": [METRICS]}
    dockerfile = files.DOCKERFILE.read_text()
    assert f"EXPOSE {HTTP} {METRICS}" in dockerfile
    assert f"0.0.0.0:{HTTP}" in dockerfile
    assert files.compose()["services"]["web"]["ports"] == [f"127.0.0.1:{HTTP}:{HTTP}"]


@pytest.mark.urls(__name__)
def test_probed_pages_exist_in_the_project() -> None:
    text = "".join(path.read_text() for path in (files.COMPOSE, *files.MANIFESTS))
    found = set(re.findall(r"/fairque/[a-z]+/", text)) - {"/fairque/health/"}
    assert found == {"/fairque/live/", "/fairque/ready/"}
    for url in found:
        assert resolve(url).url_name


def test_probes_name_a_host_that_is_allowed() -> None:
    hosts = files.resource("ConfigMap", "shop")["data"]["ALLOWED_HOSTS"].split(",")
    for name in ("livenessProbe", "readinessProbe"):
        probe = container("shop-web")[name]
        assert next(header["value"] for header in probe["httpGet"]["httpHeaders"] if header["name"] == "Host") in hosts
        assert probe["timeoutSeconds"] > 2  # a page gives up after 2 seconds
    assert "localhost" in files.compose()["services"]["web"]["environment"]["ALLOWED_HOSTS"].split(",")


def test_kubernetes_selectors_match_existing_labels() -> None:
    labels = {
        name: files.resource("Deployment", name)["spec"]["template"]["metadata"]["labels"]
        for name in ("shop-web", "shop-worker")
    }
    for resource in files.resources():
        name, spec = resource["metadata"]["name"], resource.get("spec", {})
        if resource["kind"] in {"Deployment", "PodDisruptionBudget"}:
            assert spec["selector"]["matchLabels"] == labels[name]
        elif resource["kind"] == "Service":
            assert spec["selector"] == labels[name]
        elif resource["kind"] == "NetworkPolicy":
            chosen = spec["podSelector"]["matchLabels"].items()
            assert any(chosen <= label.items() for label in labels.values())
    target = files.resource("HorizontalPodAutoscaler", "shop-worker")["spec"]["scaleTargetRef"]
    assert (
        files.resource(target["kind"], target["name"])["spec"].get("replicas") is None
    )  # the autoscaler sets the number


def test_secrets_have_the_names_that_the_settings_read() -> None:
    settings = (files.FOLDER / "project" / "settings.py").read_text()
    secret = set(files.resource("Secret", "shop")["stringData"])
    plain = set(files.resource("ConfigMap", "shop")["data"])
    needed = set(re.findall(r'os\.environ(?:\.get\(|\[)"(\w+)"', settings)) | set(
        re.findall(r"FAIRQUE_\w+__\w+", settings)
    )
    assert needed - {"SECRET_KEY_BEFORE"} == secret | plain
    assert set(files.compose()["services"]["web"]["environment"]) <= needed
    assert not any(files.resource("Secret", "shop")["stringData"].values())
    for _, pod in files.pods():
        (of_pod,) = pod["containers"]
        assert of_pod["envFrom"] == [{"configMapRef": {"name": "shop"}}, {"secretRef": {"name": "shop"}}]


def test_kustomize_lists_all_but_separate_manifests() -> None:
    listed = yaml.safe_load((files.FOLDER / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    assert {*listed, "release.yaml", "secret.yaml"} == {manifest.name for manifest in files.MANIFESTS}


def test_the_metric_for_scaling_is_documented() -> None:
    (metric,) = files.resource("HorizontalPodAutoscaler", "shop-worker")["spec"]["metrics"]
    described = (files.FOLDER.parent / "reference" / "metrics-and-signals.md").read_text()
    assert f"| `{metric['external']['metric']['name']}` |" in described


def test_no_container_runs_as_root_or_writes_outside_of_its_volumes() -> None:
    for _, pod in files.pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        (of_pod,) = pod["containers"]
        assert of_pod["securityContext"]["readOnlyRootFilesystem"] is True
        assert of_pod["securityContext"]["allowPrivilegeEscalation"] is False
        assert of_pod["resources"]["limits"]["memory"]
    assert f"USER {deployment('shop-worker')['securityContext']['runAsUser']}" in files.DOCKERFILE.read_text()


class TestTheChecklist:
    text = (DOCS / "guides" / "deployment.md").read_text().partition("## Before production")[2]
    checks = (DOCS / "reference" / "checks.md").read_text()

    def test_the_checklist_has_every_deployment_check(self) -> None:
        section = self.checks.partition("## Deployment")[2]
        of_deployments = set(re.findall(r"`fairque\.([EW]\d{3})`", section))
        assert of_deployments - set(re.findall(r"\[`([EW]\d{3})`\]", self.text)) == set()

    def test_each_number_in_the_checklist_links_to_its_description(self) -> None:
        for number, anchor in re.findall(r"\[`([EW]\d{3})`\]\(\.\./reference/checks\.md#(\w+)\)", self.text):
            assert anchor == number.lower()

    def test_each_row_of_the_checklist_names_its_check(self) -> None:
        rows = [line for line in self.text.splitlines() if line.startswith("| ") and not line.endswith("| check |")]
        assert len(rows) > 20
        for row in rows:
            assert re.search(r"\[`[EW]\d{3}`\]|`security\.W\d{3}`|`fairque_health`|by hand", row.split("|")[2]), row
