"""The tools that read these files find nothing wrong with them. Where one is not installed, its test is skipped."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.deployment import files

if TYPE_CHECKING:
    from pathlib import Path

EXPOSURE = 25
"""Of `systemd-analyze security`, in tenths: 0 is a unit that may do nothing, 96 one that may do anything."""

hadolint = shutil.which("hadolint")
systemd_analyze = shutil.which("systemd-analyze")
kubectl = shutil.which("kubectl")


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.skipif(hadolint is None, reason="hadolint is not installed")
@pytest.mark.parametrize("path", [files.DOCKERFILE, files.DEMO_DOCKERFILE], ids=lambda path: path.parent.name)
def test_dockerfiles_pass_their_linter(path: Path) -> None:
    assert run(str(hadolint), str(path)) == ""


def test_the_dockerfile_of_the_demonstration_copies_files_that_exist_and_runs_a_known_command() -> None:
    text = files.DEMO_DOCKERFILE.read_text()
    copied = [
        word
        for line in re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", text, re.MULTILINE)
        for word in line.split()
    ]
    assert {"django_fairque", "testproject"} <= set(copied)
    assert [path for path in copied if not (files.ROOT / path).exists()] == []
    (started,) = re.findall(r"^CMD (.+)$", text, flags=re.MULTILINE)
    python, manage, command, *options = json.loads(started)
    assert (python, manage) == ("python", "manage.py")
    shown = run(sys.executable, str(files.ROOT / "testproject" / "manage.py"), command, "--help")
    assert {option for option in options if option.startswith("--")} <= set(re.findall(r"--[\w-]+", shown))


def test_the_dockerfile_has_two_stages_and_its_last_stage_builds_nothing() -> None:
    text = files.DOCKERFILE.read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    assert len(stages) == 2
    assert "pip install" in stages[0]
    assert "pip" not in stages[1]
    (started,) = re.findall(r"^CMD (.+)$", text, flags=re.MULTILINE)
    assert json.loads(started)[0] == "gunicorn"  # exec form: no shell stands between it and a signal


@pytest.mark.parametrize("path", files.MANIFESTS, ids=lambda path: path.name)
def test_manifests_follow_their_schemas(path: Path) -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed")
    output = run(sys.executable, "-m", "kubernetes_validate", "--strict", str(path))
    assert output.count("passed") == len(list(yaml.safe_load_all(path.read_text())))


@pytest.mark.skipif(kubectl is None, reason="kubectl is not installed")
def test_kustomize_renders_each_resource_in_its_namespace() -> None:
    rendered = list(yaml.safe_load_all(run(str(kubectl), "kustomize", str(files.FOLDER / "kubernetes"))))
    listed = yaml.safe_load((files.FOLDER / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    written = [item for name in listed for item in yaml.safe_load_all((files.FOLDER / "kubernetes" / name).read_text())]
    names = [sorted((item["kind"], item["metadata"]["name"]) for item in some) for some in (rendered, written)]
    assert names[0] == names[1]
    assert {manifest["metadata"]["namespace"] for manifest in rendered} == {"shop"}


@pytest.mark.skipif(systemd_analyze is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", files.UNITS, ids=lambda path: path.name)
def test_systemd_units_can_be_loaded_and_have_few_rights(path: Path, tmp_path: Path) -> None:
    installed = tmp_path / path.name
    # systemd-analyze reports an error if the program of a unit does not exist.
    installed.write_text(re.sub(r"/srv/shop/venv/bin/\w+", "/bin/true", path.read_text()))
    assert run(str(systemd_analyze), "verify", "--man=no", str(installed)) == ""
    run(str(systemd_analyze), "security", "--offline=true", f"--threshold={EXPOSURE}", str(installed))


def test_services_in_the_compose_file_wait_for_a_healthy_dependency() -> None:
    services = files.compose()["services"]
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[needed], f"{name} waits for the health of {needed}, which has none"
            else:
                assert services[needed]["restart"] == "no"
    mounted = {volume.partition(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert {mount for mount in mounted if not mount.startswith(".")} == set(files.compose()["volumes"])
    assert all((files.COMPOSE.parent / mount).is_file() for mount in mounted if mount.startswith("."))
