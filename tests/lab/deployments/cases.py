"""The declaration of a deployment, and its report."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tests.lab.deployments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.lab.neighbors.world import World

MODULE_PREFIX = "case_"
"""Modules of this package with this prefix declare cases."""


class SkippedError(Exception):
    """A case can't be tried on this machine; the text says why."""


@dataclass(frozen=True)
class Outcome:
    """The result of a case in words, and whether the result is the expected one."""

    text: str
    is_right: bool


@dataclass(frozen=True)
class Case:
    """A deployment, and what must hold in it."""

    deployment: str
    expected: str
    run: Callable[[World], Outcome]

    @property
    def name(self) -> str:
        return self.run.__name__


_cases: list[Case] = []


def case(deployment: str, *, expected: str) -> Callable[[Callable[[World], Outcome]], Callable[[World], Outcome]]:
    """Declare a function as a case. It gets a `World` with a separate server and returns what came."""

    def declare(function: Callable[[World], Outcome]) -> Callable[[World], Outcome]:
        _cases.append(Case(deployment, expected, function))
        return function

    return declare


def all_cases() -> Sequence[Case]:
    """All declared cases, in the order of their modules."""
    for module in sorted(pkgutil.iter_modules(tests.lab.deployments.__path__), key=lambda module: module.name):
        if module.name.startswith(MODULE_PREFIX):
            importlib.import_module(f"{tests.lab.deployments.__name__}.{module.name}")
    return _cases


def require_program(name: str) -> str:
    """The path of a program; raises `SkippedError` if it is not installed."""
    found = shutil.which(name)
    if found is None:
        raise SkippedError(f"{name} is not installed: uv run --with uwsgi --with gunicorn --with daphne")
    return found


def require_namespaces(*options: str) -> None:
    """Raise `SkippedError` unless ``unshare`` may make these namespaces here."""
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        raise SkippedError("only root can make namespaces, with unshare")
    done = subprocess.run([unshare, *options, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SkippedError(f"namespaces are not permitted here: {done.stderr.strip()}")
