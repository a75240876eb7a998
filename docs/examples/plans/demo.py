"""Customers on two plans order exports, a worker runs them, and a table shows who waited how long: ``python demo.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import django

HERE = Path(__file__).parent
ORDERS = {"hooli": ("free", 400), "acme": ("pro", 40), "globex": ("pro", 10), "initech": ("free", 1)}
"""Customer -> plan and number of exports; the first one floods the queue before the others come."""


def manage(*words: str) -> None:
    subprocess.run([sys.executable, "manage.py", *words], cwd=HERE, check=True)


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "saas.settings"
    sys.path.insert(0, str(HERE))
    django.setup()
    from saas.plans import apply_plan, order_exports

    manage("migrate", "--verbosity", "0")
    try:
        orders = {}
        for customer, (plan, count) in ORDERS.items():
            apply_plan(customer, plan)
            orders[customer] = order_exports(customer, count)
            sys.stdout.write(f"{customer} ({plan}) orders {count}: {orders[customer].answer}\n")
        manage("fairque_worker", "--processes", "1", "--concurrency", "4", "--burst")
        print_waits({customer: order.accepted for customer, order in orders.items()})
    finally:
        manage("fairque_server", "stop")


def print_waits(exports: dict[str, list]) -> None:
    """Print how long the exports of each customer waited, from when they could start."""
    sys.stdout.write(f"\n{'customer':<10}{'plan':<6}{'done':>6}{'median wait':>14}{'longest':>10}\n")
    for customer, results in exports.items():
        tasks = [result.refresh().task for result in results]
        waits = [task.started_at - task.created_at for task in tasks]
        row = f"{customer:<10}{ORDERS[customer][0]:<6}{len(tasks):>6}{median(waits):>12.2f} s{max(waits):>8.2f} s"
        sys.stdout.write(f"{row}\n")


if __name__ == "__main__":
    main()
