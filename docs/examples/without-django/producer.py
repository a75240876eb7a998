"""A program without Django settings that sends jobs: it needs the server's address, the key, and the names of the jobs."""

from __future__ import annotations

import os
import sys

from django_fairque import FairQueue, Priority, RedisConfig, Task
from django_fairque.tasks import signing

signing.sign_with(os.environ["JOBS_KEY"])  # consumers run only what is signed with their key
queue = FairQueue(RedisConfig(url=os.environ["JOBS_SERVER"]).create_redis_client())


def send(customer: str, text: str) -> str:
    """Send a job. Returns its id."""
    payload = {"args": [customer, text], "kwargs": {}}
    return queue.push(Task.create(customer, Priority.NORMAL, payload, name="count_words")).task_id


if __name__ == "__main__":
    for customer, text in (
        ("acme", "to be or not to be"),
        ("globex", "the tasks of the others wait"),
        ("acme", "words"),
    ):
        sys.stdout.write(f"{send(customer, text)}\n")
