"""Move the jobs and webhooks of NetBox from django-rq. Its pages about queues stay those of django-rq.

RQ pickles a function and its arguments, among them requests and forms. The moved jobs do the same in one task, whose
only argument is a text with the pickled call. Payloads are signed, so a worker unpickles nothing that others wrote.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.tools import postgres

from .projects import Project

if TYPE_CHECKING:
    from .edits import Edits

JOBS, MODELS, EVENTS, WEBHOOKS = "netbox/jobs.py", "core/models/jobs.py", "extras/events.py", "extras/webhooks.py"
MIXIN, EVENT_TESTS, MODEL_TESTS = (
    "utilities/testing/mixins.py",
    "extras/tests/test_event_rules.py",
    "core/tests/test_models.py",
)

TASKS = '''\
"""The background task: any function, with arguments that can be pickled."""
import base64
import pickle

from django_fairque import task

from netbox.config import get_config

__all__ = (
    'enqueue',
)


@task(user='user', max_retries=0, backoff=lambda retries, error: get_config().RQ_RETRY_INTERVAL)
def run(user, call):
    """
    Call a function with its arguments, as `enqueue` has pickled them.
    """
    function, kwargs = pickle.loads(base64.b64decode(call))
    return function(**kwargs)


def enqueue(queue, function, user=None, job_id=None, job_timeout=None, schedule_at=None, retry=0, **kwargs):
    """
    Run a function in a worker, after the transaction and not before `schedule_at`.
    """
    call = base64.b64encode(pickle.dumps((function, kwargs))).decode()
    sender = run.using(
        queue=queue, task_id=job_id, timeout=job_timeout, execute_after=schedule_at, max_retries=retry
    )
    return sender.enqueue(user.pk if user else 'netbox', call)
'''
WORKER = '''\
from django_fairque.management.commands.fairque_worker import Command as FairqueWorker

from netbox.registry import registry


class Command(FairqueWorker):
    """
    Schedule the system jobs, then run a worker.
    """
    def handle(self, *args, **options):
        for job, kwargs in registry['system_jobs'].items():
            job.enqueue_once(**kwargs)
        super().handle(*args, **options)
'''
TEST_MIXIN = '''\
import base64
import pickle
from dataclasses import dataclass

from django_fairque.testing import enqueued

__all__ = (
    'CapturedJobs',
    'RQQueueTestMixin',
)


@dataclass
class CapturedJob:
    kwargs: dict
    timeout: float | None


class CapturedJobs:
    """
    The jobs that a test has enqueued.
    """
    def get_jobs(self):
        calls = [(pickle.loads(base64.b64decode(captured.args[1])), captured.task) for captured in enqueued]
        return [CapturedJob(kwargs, task.timeout) for (_, kwargs), task in calls]

    @property
    def jobs(self):
        return self.get_jobs()

    @property
    def count(self):
        return len(enqueued)

    def empty(self):
        enqueued.clear()


class RQQueueTestMixin:
    """
    Run the jobs that a test has enqueued.
    """
    def run_rq_jobs(self, *queue_names):
        for name in queue_names:
            enqueued.run(name)
'''
SETTINGS = """
FAIRQUE = {
    'REDIS': {'URL': TASKS_REDIS_URL or f'redis://{TASKS_REDIS_HOST}:{TASKS_REDIS_PORT}/{TASKS_REDIS_DATABASE}'},
    'QUEUES': {queue: {} for queue in RQ_QUEUES},
    'WORKER': {'TASK_TIMEOUT': RQ_DEFAULT_TIMEOUT},
}

"""
DELETE_TEST = """\
    def test_delete_cancels_job_from_correct_queue(self):
        job = Job.enqueue(func=print, name='Test Job', queue_name='low')
        captured = enqueued[0]
        self.assertEqual(captured.queue, 'low')

        job.delete()
        self.assertEqual(captured.state, 'canceled')

"""
CONFIGURATION = """\
import os

from netbox.configuration_testing import *
from netbox.configuration_testing import DATABASES, REDIS

DATABASES['default'].update(NAME='netbox', USER=os.environ['PGUSER'], PASSWORD='', HOST=os.environ['PGHOST'])
for server in REDIS.values():
    server['PORT'] = int(os.environ['FAIRQUE_PORT_REDIS'])
DATABASES['default']['TEST'] = {'MIGRATE': False}  # its migrations take minutes
"""

COLLATION = "CREATE COLLATION IF NOT EXISTS natural_sort (provider=icu, locale='und-u-kn-true')"


def prepare(edits: Edits) -> None:
    """Name the servers of the tests, before and after the port. Without migrations, its collation is created here."""
    edits.write("netbox/configuration_port.py", CONFIGURATION)
    psql = Path(str(postgres.binaries())) / "psql"
    subprocess.run([psql, "--quiet", "template1", "--command", COLLATION], check=True)


def apply(edits: Edits) -> None:
    edits.write("core/tasks.py", TASKS)
    edits.write("core/management/commands/netbox_worker.py", WORKER)
    edits.replace("netbox/settings.py", "    'django_rq',", "    'django_fairque',\n    'django_rq',")
    edits.substitute("netbox/settings.py", r"^#\n# Localization\n#\n", SETTINGS.lstrip() + "#\n# Localization\n#\n")
    edits.replace(
        JOBS, "from rq.timeouts import JobTimeoutException", "from django_fairque import SoftTimeLimitExceeded"
    )
    edits.replace(JOBS, "type(e) is JobTimeoutException", "type(e) is SoftTimeLimitExceeded")
    _change_models(edits)
    _change_webhooks(edits)
    _change_tests(edits)


def _change_models(edits: Edits) -> None:
    edits.replace(MODELS, "from functools import partial\n", "")
    edits.replace(MODELS, "import django_rq\n", "")
    edits.replace(MODELS, "from django.db import models, transaction\n", "from django.db import models\n")
    imports = "from django_fairque import TaskNotFoundError, TaskResult\n"
    edits.replace(MODELS, "from rq.exceptions import InvalidJobOperation\n", imports)
    edits.substitute(MODELS, r"^(from core\.signals [^\n]*\n)", r"\1from core.tasks import enqueue\n")
    canceled = (
        "        try:\n            TaskResult(rq_job_id, rq_queue_name).cancel()\n"
        "        except TaskNotFoundError:\n            pass\n"
    )
    edits.substitute(
        MODELS, r"^        queue = django_rq\.get_queue\(rq_queue_name\)\n        job = .*?pass\n", canceled
    )
    edits.substitute(MODELS, r"^        queue = django_rq\.get_queue\(rq_queue_name\)\n", "")
    sent = (
        "        else:\n            enqueue(\n                rq_queue_name, func, user=user, job_id=str(job.job_id), "
        "schedule_at=schedule_at, job=job, **kwargs\n            )\n\n"
    )
    edits.substitute(MODELS, r"^        # Schedule the job to run at.*?(?=^        return job)", sent)


def _change_webhooks(edits: Edits) -> None:
    edits.replace(EVENTS, "from django_rq import get_queue\n", "")
    edits.replace(
        EVENTS,
        "from core.models import ObjectType\n",
        "from core.models import ObjectType\nfrom core.tasks import enqueue\n",
    )
    edits.replace(EVENTS, "from utilities.rqworker import get_rq_retry\n", "")
    edits.replace(EVENTS, "            rq_queue = get_queue(queue_name)\n", "")
    edits.replace(EVENTS, "'retry': get_rq_retry()", "'retry': get_config().RQ_RETRY_MAX")
    sent = "enqueue(queue_name, import_string('extras.webhooks.send_webhook'), user=event.get('user'), **params)"
    edits.replace(EVENTS, "rq_queue.enqueue('extras.webhooks.send_webhook', **params)", sent)
    edits.replace(WEBHOOKS, "from django_rq import job\n", "")
    edits.replace(WEBHOOKS, "@job('default')\n", "")


def _change_tests(edits: Edits) -> None:
    edits.write(MIXIN, TEST_MIXIN)
    edits.replace(EVENT_TESTS, "import django_rq\n", "")
    edits.replace(EVENT_TESTS, "import RQQueueTestMixin", "import CapturedJobs, RQQueueTestMixin")
    edits.replace(EVENT_TESTS, "django_rq.get_queue('default')", "CapturedJobs()")
    edits.substitute(
        MODEL_TESTS,
        r"^    @patch\('core\.models\.jobs\.django_rq\.get_queue'\)\n.*?mock_rq_job\.cancel\.assert_called_once\(\)\n\n",
        DELETE_TEST,
    )
    edits.substitute(MODEL_TESTS, r"^(from django\.test [^\n]*\n)", r"\1from django_fairque.testing import enqueued\n")


PROJECT = Project(
    name="netbox",
    queue="django-rq",
    prepare=prepare,
    apply=apply,
    command=(
        *("manage.py", "test", "--keepdb"),
        *("netbox.tests.test_jobs", "extras.tests.test_event_rules", "core.tests.test_models.JobTestCase"),
    ),
    folder="netbox",
    environment=lambda: {"NETBOX_CONFIGURATION": "netbox.configuration_port"},
)
