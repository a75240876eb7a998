"""Start a server, a consumer and a producer, print the results, and stop everything: ``python demo.py``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from django_fairque import FairQueue, RedisConfig, TaskState
from django_fairque.embedded import EmbeddedServer

HERE = Path(__file__).parent
PATIENCE_SECONDS = 30


def main() -> None:
    server = EmbeddedServer(HERE / ".fairque")
    address = f"unix://{server.ensure()}"
    environment = {**os.environ, "JOBS_SERVER": address, "JOBS_KEY": "a secret that both programs know"}
    consumer = subprocess.Popen([sys.executable, "consumer.py"], cwd=HERE, env=environment)
    try:
        sent = subprocess.run(
            [sys.executable, "producer.py"], cwd=HERE, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        queue = FairQueue(RedisConfig(url=address).create_redis_client())
        for task_id in sent.stdout.split():
            sys.stdout.write(f"{wait_for(queue, task_id)}\n")
    finally:
        consumer.terminate()
        consumer.wait()
        server.stop()


def wait_for(queue: FairQueue, task_id: str) -> str:
    """Wait until a job has ended. Returns its customer and its result."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = queue.get_task(task_id)
        if found.state.is_ended:
            break
        if time.monotonic() > until:
            raise TimeoutError(f"job {task_id} has not ended within {PATIENCE_SECONDS} s")
        time.sleep(0.05)
    if found.state is not TaskState.FINISHED:
        raise RuntimeError(f"job {task_id} {found.state.value}: {found.error}")
    return f"{found.user_id}: {found.result}"


if __name__ == "__main__":
    main()
