"""A program that runs jobs. It has no Django project: the two settings that it needs are given here."""

from __future__ import annotations

import os
import signal

from django.conf import settings

settings.configure(SECRET_KEY=os.environ["JOBS_KEY"], FAIRQUE={"REDIS": {"URL": os.environ["JOBS_SERVER"]}})

import jobs  # noqa: E402, F401 - declares the jobs, which needs the settings

from django_fairque import Worker  # noqa: E402

if __name__ == "__main__":
    worker = Worker(["default"], concurrency=4)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()
