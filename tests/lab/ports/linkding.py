"""Move linkding from huey: its bookmarks' owners become users, its lock a limit, its crontab a schedule."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .projects import Project

if TYPE_CHECKING:
    from .edits import Edits

TASKS = "bookmarks/services/tasks.py"
TASK_TESTS = "bookmarks/tests/test_bookmarks_tasks.py"
ADMIN = "bookmarks/admin.py"
ADMIN_TESTS = "bookmarks/tests/test_admin_background_tasks_view.py"

DECORATOR = """\
# Retries after 1, 4, 16, 64 and 256 minutes.
task = functools.partial(
    fairque_task, max_retries=5, backoff=lambda retries, error: 60 * 4**retries
)
"""
SETTINGS = """\
FAIRQUE = {
    "REDIS": {"URL": os.getenv("LD_REDIS_URL", "redis://localhost:6379/0")},
    "WORKER": {"CONCURRENCY": 2},
    "SCHEDULES": {
        "html-snapshots": {
            "TASK": "bookmarks.services.tasks._schedule_html_snapshots_task",
            "CRON": "* * * * *",
            "OVERLAP": "skip",
        },
    },
}
"""
PAGINATOR = """\
class TaskPaginator(Paginator):
    def __init__(self):
        super().__init__(get_queue().tasks("queued", limit=1000), 100)


"""


def apply(edits: Edits) -> None:
    _change_tasks(edits)
    _change_admin(edits)
    _change_settings(edits)
    _change_tests(edits)


def _change_tasks(edits: Edits) -> None:
    imports = "from django_fairque import Concurrency\nfrom django_fairque import task as fairque_task\n"
    edits.substitute(TASKS, r"^from huey import crontab\n.*?TaskLockedException\n", imports)
    edits.substitute(TASKS, r"^# Create custom decorator.*?^    return deco\n", DECORATOR)
    owned = r"^( +)(_(?:create|load|schedule)_\w+_task)\((bookmark\.id(?:, \w+)?|user\.id)\)"
    edits.substitute(TASKS, owned, r"\1\2.using(user_id=user.id).enqueue(\3)", times=9)
    edits.replace(
        TASKS,
        "_refresh_metadata_task(bookmark.id)",
        "_refresh_metadata_task.using(user_id=bookmark.owner_id).enqueue(bookmark.id)",
    )
    limited = '@task(max_retries=0, limits=[Concurrency("html-snapshots", 1)])\n'
    edits.substitute(TASKS, r"^@huey\.periodic_task.*?lock\"\)\n", limited)
    edits.replace(
        "bookmarks/management/commands/migrate_tasks.py", "func(*function_params)", "func.enqueue(*function_params)"
    )


def _change_admin(edits: Edits) -> None:
    imports = (
        "from django_fairque import get_queue\n"
        "from django_fairque.admin.site import QueueAdmin\n"
        "from django_fairque.models import Queue\n"
    )
    edits.replace(ADMIN, "from huey.contrib.djhuey import HUEY as huey\n", imports)
    edits.substitute(ADMIN, r"^class TaskPaginator.*?(?=^# Custom view)", PAGINATOR)
    edits.replace(ADMIN, '"Huey"', '"Background tasks"')
    edits.replace(ADMIN, '"huey_app"', '"fairque_app"')
    created = r"^(linkding_admin_site = .*?\n)"
    edits.substitute(ADMIN, created, r"\1linkding_admin_site.register(Queue, QueueAdmin)\n")


def _change_settings(edits: Edits) -> None:
    base = "bookmarks/settings/base.py"
    edits.replace(base, '"huey.contrib.djhuey"', '"django_fairque"')
    edits.substitute(base, r"^# Huey task queue\nHUEY = \{.*?^\}\n", SETTINGS)
    for file in ("dev", "prod"):
        edits.substitute(f"bookmarks/settings/{file}.py", r'"huey": \{[^\n]*', '"django_fairque": {')
    for file in ("supervisord-tasks.conf", "supervisord-all.conf"):
        edits.replace(file, "run_huey -f", "fairque_worker")
    edits.replace("Makefile", "run_huey", "fairque_worker")
    edits.substitute("pyproject.toml", r'"huey>=[^"]*"', '"django-fairque"')


def _change_tests(edits: Edits) -> None:
    edits.replace(
        TASK_TESTS, "from huey.contrib.djhuey import HUEY as huey\n", "from django_fairque.testing import eager\n"
    )
    edits.substitute(
        TASK_TESTS,
        r"huey\.immediate = True\n +huey\.results = True\n +huey\.store_none = True\n",
        "self.executed = self.enterContext(eager())\n",
    )
    edits.substitute(TASK_TESTS, r"^ +huey\.storage\.flush_results\(\)\n +huey\.immediate = False\n", "")
    edits.replace(TASK_TESTS, "len(huey.all_results())", "len(self.executed)")
    edits.substitute(TASK_TESTS, r"(tasks\._(?!create_html|schedule_html)\w+_task)\(", r"\1.enqueue(", times=4)
    called = "mock_refresh_metadata_task.assert_called_once()"
    edits.replace(TASK_TESTS, called, "mock_refresh_metadata_task.using.return_value.enqueue.assert_called_once()")
    edits.replace(
        ADMIN_TESTS,
        '    url = "/admin/tasks/"\n',
        '    url = "/admin/tasks/"\n\n    def setUp(self):\n        self.enterContext(private_server())\n',
    )
    edits.substitute(
        ADMIN_TESTS, r"^(from django\.test .*?\n)", r"\1from django_fairque.testing import private_server\n"
    )


PROJECT = Project(
    name="linkding",
    queue="huey",
    apply=apply,
    command=("-m", "pytest", "-q", "-p", "no:cacheprovider", TASK_TESTS, ADMIN_TESTS),
    environment=lambda: {
        "LD_DB_ENGINE": "postgres",
        "LD_DB_USER": os.environ["PGUSER"],
        "LD_DB_HOST": os.environ["PGHOST"],
        "LD_DB_DATABASE": "linkding",
    },
)
