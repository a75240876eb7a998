"""The options of ``@task`` and of ``.using(…)`` in the documentation and in docstrings, from the fields of `TaskOptions`.

``python -m tests.tools.task_options`` rewrites the tables and the lists; a test fails if one differs.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from typing import TYPE_CHECKING

from django_fairque.tasks import options
from tests.docs.blocks import ROOT

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

ACCEPTED = {
    "Seconds": "seconds, `timedelta`",
    "Limit": "`Concurrency`, `Rate`",
    "Sequence[Limit]": "list",
    "Lane": '`"urgent"`, `"normal"`, `"bulk"`',
    "Moment": "seconds since 1970, `datetime` (aware, or naive with `USE_TZ=False`), `timedelta`",
    "Callable[..., object]": "function",
    "OwnBackoff": "function",
    "Backoff": "mapping",
    "object": "id",
    "type[BaseException]": "exception",
    "tuple[type[BaseException], ...]": "tuple of exceptions",
    "Sequence[object]": "list",
}
"""The types of the annotations in words, with their units. Other types are written as code."""
LINKS = {
    "user": "[order](../guides/tasks.md#the-user-of-a-task)",
    "priority": "[priorities](../guides/priorities-and-limits.md)",
    "lane": "[lanes](../guides/lanes.md)",
    "queue": "[`fairque.E016`](checks.md#e016) reports others",
    "max_deliveries": "[dead letters](../guides/retries-and-errors.md#dead-letters)",
    "delay": "[time](../explanation/guarantees.md#time)",
    "task_id": "[choose the id](../guides/tasks.md#choose-the-id)",
    "depends_on": "[pipelines](../guides/pipelines.md#depend-on-single-tasks)",
    "on_dependency_failure": "[pipelines](../guides/pipelines.md#depend-on-single-tasks)",
    "isolated": "[tasks that run alone](../guides/workers.md#tasks-that-run-alone)",
    "capture_logs": "[log lines](#log-lines-of-a-task)",
    "limits": "[limits by key](../guides/limits.md)",
    "middleware": "[middleware](../guides/middleware.md)",
    "batch": "[batches](#batches)",
    "database": "[transactions](../guides/transactions.md#several-databases)",
}
ONLY_SENDABLE = options.SENDABLE - options.DECLARABLE
SHARED = ", ".join(f"``{name}``" for name in options.OPTIONS if name in options.SENDABLE & options.DECLARABLE)


@functools.cache
def texts() -> dict[str, str]:
    """Return the docstring of each field of `TaskOptions` in one line; empty if there is none."""
    (table,) = ast.parse(inspect.getsource(options.TaskOptions)).body
    assert isinstance(table, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, following in zip(table.body, [*table.body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.AnnAssign):
            text = ast.literal_eval(following.value) if isinstance(following, ast.Expr) else ""
            found[ast.unparse(statement.target)] = " ".join(text.split())
    return found


def accepted(name: str) -> str:
    annotations = {"batch": "int"} | options.DeclaredOptions.__annotations__ | options.SendOptions.__annotations__
    kinds = getattr(annotations[name], "__forward_arg__", annotations[name]).split(" | ")
    return ", ".join(ACCEPTED.get(kind, f"`{kind}`") for kind in kinds)


def table(names: Collection[str]) -> str:
    rows = ["| option | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, text in texts().items():
        if name in names:
            link = f" ({LINKS[name]})" if name in LINKS else ""
            cells = f"| `{name}` | {accepted(name)} | {options.OPTIONS[name].default} | {text.rstrip('.')}{link} |"
            rows.append(cells.replace("``", "`"))
    return "\n".join(rows) + "\n"


def celery_table() -> str:
    rows = [f"| `{other}` | `{name}` |\n" for other, name in options.CELERY_OPTIONS.items()]
    return "| Celery, `django.tasks` | django_fairque |\n| --- | --- |\n" + "".join(rows)


def docstring_list(names: Collection[str], indent: str, shared: str = "") -> str:
    items = [
        f"``{name}``: {text} Default: {options.OPTIONS[name].default}."
        for name, text in texts().items()
        if name in names
    ]
    wrapper = textwrap.TextWrapper(
        120,
        initial_indent=f"{indent}- ",
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "".join(wrapper.fill(item) + "\n" for item in [*items, *([shared] if shared else [])])


def generated() -> dict[Path, str]:
    """Return the files with the tables and lists, and the text that each ought to have."""
    shared_row = f"| {SHARED} | as above | as declared | as above |\n".replace("``", "`")
    using = docstring_list(ONLY_SENDABLE, " " * 8, f"{SHARED}: those of `task`. Default: as declared.")
    found: dict[Path, str] = {}
    for name, marker, text in (
        ("docs/reference/python.md", "<!-- the options of @task -->\n", table(options.DECLARABLE)),
        ("docs/reference/python.md", "<!-- the options of one call -->\n", table(ONLY_SENDABLE) + shared_row),
        ("docs/guides/from-celery.md", "<!-- the names of options -->\n", celery_table()),
        ("django_fairque/tasks/registry.py", "are, by name:\n\n", docstring_list(options.DECLARABLE, " " * 4)),
        ("django_fairque/tasks/definition.py", "are, by name:\n\n", using),
    ):
        file = ROOT / name
        old = found.get(file) or file.read_text()
        before, _, after = old.partition(marker)
        found[file] = before + marker + text + re.sub(r"\A(?:.+\n)*", "", after)
    return found


if __name__ == "__main__":
    for file, text in generated().items():
        file.write_text(text)
