"""Runs the tasks of the benchmarks' project on its event loop: ``python -m tests.lab.benchmarks.project.async_worker``."""

from __future__ import annotations

import asyncio
import signal

import django

from django_fairque import AsyncWorker
from tests.lab.benchmarks.peers.counting import SLOTS


async def main() -> None:
    worker = AsyncWorker(concurrency=SLOTS)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


if __name__ == "__main__":
    django.setup()
    asyncio.run(main())
