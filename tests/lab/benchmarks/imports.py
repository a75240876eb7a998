"""Measures the time that importing the app takes after Django is set up."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .table import Table

SETUP = """
import time, django
from django.conf import settings
settings.configure(INSTALLED_APPS=[], DATABASES={})
django.setup()
started = time.perf_counter()
%s
print((time.perf_counter() - started) * 1000)
"""


def _milliseconds(statement: str, rounds: int) -> list[float]:
    program = SETUP % statement
    return [
        float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)
        for _ in range(rounds)
    ]


def run(table: Table, *, quick: bool) -> None:
    rounds = 3 if quick else 9
    table.add("import django_fairque", _milliseconds("import django_fairque", rounds), "ms", "≤ 60")
    table.add("declare a task", _milliseconds("from django_fairque import task\n@task\ndef work(): pass", rounds), "ms")
