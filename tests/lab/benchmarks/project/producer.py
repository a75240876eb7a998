"""Sends tasks one by one, as a view does: ``python -m tests.lab.benchmarks.project.producer timed``.

``BENCH_TASKS`` is their number, ``BENCH_USERS`` the number of their users.
"""

from __future__ import annotations

import os

import django

from tests.lab.benchmarks.peers import counting

if __name__ == "__main__":
    django.setup()
    from tests.lab.benchmarks.project.tasks import count_for

    users = int(os.environ["BENCH_USERS"])
    counting.send(lambda payload: count_for.enqueue(f"u{int(payload[:8]) % users}", payload), None)
