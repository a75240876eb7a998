"""Move the tasks of pretix that it shares fairly itself (webhooks and notifications), and one of each base class.

pretix gives a webhook one of three priorities, by the number of calls of its organizer in the last minute. Here the
organizer is the user, so the counters and priorities are not needed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .projects import Project

if TYPE_CHECKING:
    from .edits import Edits

HELPERS = "pretix/base/services/fair.py"
WEBHOOKS = "pretix/api/webhooks.py"
NOTIFICATIONS = "pretix/base/services/notifications.py"
TICKETS = "pretix/base/services/tickets.py"
TESTS = tuple(f"tests/{name}.py" for name in ("base/test_webhooks", "base/test_notifications"))
INVALIDATIONS = {
    "pretix/api/views/order.py": 4,
    "pretix/base/services/orders.py": 5,
    "pretix/control/views/event.py": 2,
    "pretix/control/views/item.py": 2,
    "pretix/control/views/orders.py": 3,
    "pretix/control/views/subevents.py": 1,
    "pretix/plugins/ticketoutputpdf/forms.py": 1,
    "pretix/plugins/ticketoutputpdf/views.py": 3,
    "pretix/presale/views/order.py": 2,
}
"""How often each file sends `invalidate_cache`."""

HELPERS_TEXT = '''\
"""The base class of tasks with an event, as a decorator."""

import functools

from django_scopes import scope, scopes_disabled

from pretix.base.models import Event


def with_event(function):
    """Give the function the event with the primary key that was sent, in the scope of its organizer."""

    @functools.wraps(function)
    def load_event(event, *args, **kwargs):
        with scopes_disabled():
            event = Event.objects.select_related('organizer').get(pk=event)
        with scope(organizer=event.organizer):
            return function(event, *args, **kwargs)

    return load_event
'''
SETTINGS = """
INSTALLED_APPS.append('django_fairque')
FAIRQUE = {
    'REDIS': {'URL': config.get('redis', 'location', fallback='redis://localhost:6379/0')},
    'QUEUES': {'notifications': {}},
}
"""
FIXTURE = """

@pytest.fixture(autouse=True)
def tasks_run_at_once():
    with eager(raise_errors=False):
        yield
"""


def apply(edits: Edits) -> None:
    edits.write(HELPERS, HELPERS_TEXT)
    edits.substitute("pretix/settings.py", r"\Z", SETTINGS)
    _change_webhooks(edits)
    _change_notifications(edits)
    _change_log(edits)
    _change_cache(edits)
    for file in TESTS:
        edits.substitute(file, r"^(from django_scopes [^\n]*\n)", r"\1\nfrom django_fairque.testing import eager\n")
        edits.substitute(file, r"(?=\n\n@pytest\.fixture\ndef event\()", FIXTURE)


def _change_imports(edits: Edits, file: str, names: str) -> None:
    for module in ("base.services.tasks", "celery_app", "helpers.celery"):
        edits.substitute(file, rf"^from pretix\.{module} import [^\n]*\n", "")
    edits.substitute(file, r"^(from django_scopes [^\n]*\n)", rf"\1from django_fairque import {names}\n")


def _declare(edits: Edits, file: str, function: str, options: str) -> None:
    """Replace Celery's decorator of a function."""
    decorator = rf"^@app\.task\([^\n]*\)\n(?=(?:@scopes_disabled\(\)\n)?def {function}\()"
    edits.substitute(file, decorator, f"@task({options})\n")


def _change_webhooks(edits: Edits) -> None:
    _change_imports(edits, WEBHOOKS, "current_task, task")
    slow = 'queue="notifications", max_retries=9, backoff={"base": 900, "cap": 900, "jitter": 0}'
    _declare(edits, WEBHOOKS, "notify_webhooks", slow)
    _declare(
        edits,
        WEBHOOKS,
        "send_webhook",
        'queue="notifications", retry_on=DatabaseError, max_retries=5, backoff={"base": 60, "cap": 60, "jitter": 0}',
    )
    _declare(edits, WEBHOOKS, "manually_retry_all_calls", 'queue="notifications", max_retries=0')
    edits.replace(WEBHOOKS, "def send_webhook(self, ", "def send_webhook(")
    edits.replace(WEBHOOKS, "self.request.retries > 0", "current_task().attempt > 1", times=2)
    call = r"send_webhook\.apply_async\(\s*args=\(({}.*?)\),\s*{}\)"
    edits.substitute(
        WEBHOOKS,
        call.format(r"logentry\.id", r"priority=[^\n]*\n\s*"),
        r"send_webhook.using(user_id=wh.organizer_id).enqueue(\1)",
    )
    again = r"send_webhook.using(user_id=webhook.organizer_id, delay=\2).enqueue(\1)"
    edits.substitute(WEBHOOKS, call.format("logentry_id", r"countdown=([^\n]*)\n\s*"), again, times=2)
    due = r"send_webhook.using(user_id=whcr.webhook.organizer_id).enqueue(\1)"
    edits.substitute(WEBHOOKS, call.format("whcr", ""), due, times=2)
    edits.substitute(
        "pretix/control/views/organizer.py",
        r"manually_retry_all_calls\.apply_async\(args=\(self\.webhook\.pk,\)\)",
        "manually_retry_all_calls.using(user_id=self.request.organizer.pk).enqueue(self.webhook.pk)",
    )


def _change_notifications(edits: Edits) -> None:
    _change_imports(edits, NOTIFICATIONS, "task")
    options = 'queue="notifications", max_retries=9, backoff={"base": 900, "cap": 900, "jitter": 0}'
    for function in ("notify", "send_notification"):
        _declare(edits, NOTIFICATIONS, function, options)
    sent = r"send_notification\.apply_async\(\s*args=\((.*?)\),\s*priority=[^\n]*\n\s*\)"
    edits.substitute(
        NOTIFICATIONS, sent, r"send_notification.using(user_id=logentry.organizer_id).enqueue(\1)", times=2
    )


def _change_log(edits: Edits) -> None:
    """Change the senders of both tasks: the log of an object, and of many objects."""
    base, log = "pretix/base/models/base.py", "pretix/base/models/log.py"
    for file in (base, log):
        edits.replace(file, "from pretix.helpers.celery import get_task_priority\n", "")
    sent = r"(notify|notify_webhooks)\.apply_async\(\s*args=\(([\w.]+),\),\s*priority=get_task_priority[^\n]*\n\s*\)"
    edits.substitute(base, sent, r"\1.using(user_id=logentry.organizer_id or 'pretix').enqueue(\2)", times=2)
    many = r"organizer_ids = (set\([^\n]*\))\n(\s*\w+)\.apply_async\(\s*args=\((\w+),\),.*?\n {16}\),\n {12}\)"
    edits.substitute(log, many, r"organizer_id = min(\1)\n\2.using(user_id=organizer_id).enqueue(\3)", times=2)


def _change_cache(edits: Edits) -> None:
    edits.replace(TICKETS, "import EventTask, ProfiledTask", "import ProfiledTask")
    edits.replace(
        TICKETS,
        "from pretix.base.services.tasks",
        "from pretix.base.services.fair import with_event\nfrom pretix.base.services.tasks",
    )
    edits.substitute(TICKETS, r"^(from django_scopes [^\n]*\n)", r"\1\nfrom django_fairque import task\n")
    edits.replace(TICKETS, "@app.task(base=EventTask, acks_late=True)\n", '@task(user="event")\n@with_event\n')
    sent = r"invalidate_cache\.apply_async\(\s*kwargs=(\{[^}]*\})\s*\)"
    for file, times in INVALIDATIONS.items():
        edits.substitute(file, sent, r"invalidate_cache.enqueue(**\1)", times=times)


PROJECT = Project(
    name="pretix",
    queue="Celery",
    apply=apply,
    command=("-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS),
    folder="src",
    environment=lambda: {
        "PRETIX_DATABASE_BACKEND": "postgresql",
        "PRETIX_DATABASE_NAME": "pretix",
        "PRETIX_DATABASE_USER": os.environ["PGUSER"],
        "PRETIX_DATABASE_HOST": os.environ["PGHOST"],
    },
)
