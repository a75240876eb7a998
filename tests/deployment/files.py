"""The files of docs/deployment/, read as the tools that use them do."""

from __future__ import annotations

import configparser
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "deployment"
UNITS = sorted((FOLDER / "systemd").glob("*.service"))
MANIFESTS = sorted(path for path in (FOLDER / "kubernetes").glob("*.yaml") if path.name != "kustomization.yaml")
COMPOSE = FOLDER / "docker" / "compose.yaml"
DOCKERFILE = FOLDER / "docker" / "Dockerfile"
DEMO_DOCKERFILE = ROOT / "testproject" / "Dockerfile"


@dataclass(frozen=True)
class Command:
    """Words that some file has run, and where."""

    where: str
    words: tuple[str, ...]

    @property
    def names(self) -> list[tuple[str, list[str]]]:
        """Each `manage.py` command among them, with the words that follow it."""
        found = []
        for index, word in enumerate(self.words):
            if word == "manage.py":
                rest = list(self.words[index + 2 :])
                end = next(
                    (place for place, part in enumerate(rest) if part in {"&&", "||", ";", "manage.py"}), len(rest)
                )
                found.append((self.words[index + 1], [part.removesuffix(";") for part in rest[:end]]))
        return found


def unit(path: Path) -> dict[str, dict[str, str]]:
    """A systemd unit's sections; none of ours gives a key twice but `Environment`."""
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return {name: dict(parser[name]) for name in parser.sections()}


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return content


def resources() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text())


def resource(kind: str, name: str) -> dict[str, Any]:
    (found,) = (item for item in resources() if (item["kind"], item["metadata"]["name"]) == (kind, name))
    return found


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each Deployment and Job, and the specification of its pods."""
    for item in resources():
        if item["kind"] in {"Deployment", "Job"}:
            yield item["metadata"]["name"], item["spec"]["template"]["spec"]


def words(command: list[str]) -> tuple[str, ...]:
    """Return the words of a command in exec form; split the text that it passes to a shell."""
    if command[:1] == ["CMD"] or command[:1] == ["CMD-SHELL"]:
        command = command[1:]
    return tuple(part for word in command for part in (shlex.split(word) if " " in word else [word]))


def seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)(s?)", text)
    assert match, f"expected seconds as 45 or 45s, got {text!r}"
    return int(match[1])


def commands() -> Iterator[Command]:
    """All that any file has run."""
    for path in UNITS:
        yield Command(path.name, tuple(shlex.split(unit(path)["Service"]["ExecStart"])))
    for name, service in compose()["services"].items():
        for command in (service.get("command"), service.get("healthcheck", {}).get("test")):
            if command:
                yield Command(f"compose.yaml {name}", words(command))
    for name, pod in pods():
        (container,) = pod["containers"]
        if "command" in container:
            yield Command(name, words([*container["command"], *container.get("args", [])]))
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if "exec" in container.get(probe, {}):
                yield Command(f"{name} {probe}", words(container[probe]["exec"]["command"]))
