"""Without opentelemetry-api everything but `TRACING` works, and where it is not used it is not imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import sys
if "without" in sys.argv:
    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "opentelemetry":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Missing())
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_fairque"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    FAIRQUE={"REDIS": {"URL": "redis://127.0.0.1:1/0"}, "TRACING": "on" in sys.argv},
)
django.setup()
from django_fairque import current_task, task
from django_fairque.engine.model.trace_context import Trace
from django_fairque.tasks.tracing import in_trace
from django_fairque.testing import eager

@task
def work():
    return current_task().traceparent

with eager(), in_trace(Trace(f"00-{'1' * 32}-{'2' * 16}-00")):
    print(work.enqueue().result()[:6], "opentelemetry.trace" in sys.modules)
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_opentelemetry_is_imported_only_if_tracing_is_on() -> None:
    assert run().stdout == "00-111 False\n"
    assert run("on").stdout == "00-111 True\n"


def test_the_package_works_without_opentelemetry() -> None:
    assert run("without").stdout == "00-111 False\n"


def test_the_error_about_tracing_names_the_missing_package() -> None:
    done = run("without", "on")
    assert done.returncode == 1
    assert "expected false while opentelemetry-api is not installed" in done.stderr
    assert "django-fairque[opentelemetry]" in done.stderr
