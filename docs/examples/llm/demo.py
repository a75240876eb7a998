"""Customers ask a local stand-in for a model, which is slow and often busy; a table shows what it took: ``python demo.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import django

HERE = Path(__file__).parent
QUESTIONS = {"hooli": 60, "acme": 5, "globex": 3}
"""Customer -> number of questions; the first one asks all of them before the others come."""
PATIENCE_SECONDS = 120


def main() -> None:
    model = subprocess.Popen([sys.executable, "fake_model.py", "0"], cwd=HERE, stdout=subprocess.PIPE, text=True)
    try:
        os.environ["MODEL_PORT"] = model.stdout.readline().strip()
        os.environ["DJANGO_SETTINGS_MODULE"] = "assistant.settings"
        sys.path.insert(0, str(HERE))
        django.setup()
        run_questions()
    finally:
        model.terminate()
        model.wait()
        model.stdout.close()


def run_questions() -> None:
    """Send all questions, run a worker until each has an answer, and print the table."""
    from assistant.tasks import ask

    from django_fairque import TaskFailedError

    manage = [sys.executable, "manage.py"]
    subprocess.run([*manage, "migrate", "--verbosity", "0"], cwd=HERE, check=True)
    results = {
        customer: [ask.enqueue(customer, f"question {number} of {customer}") for number in range(count)]
        for customer, count in QUESTIONS.items()
    }
    refused = ask.enqueue("globex", "a forbidden question")
    worker = subprocess.Popen([*manage, "fairque_worker", "--processes", "1", "--concurrency", "8"], cwd=HERE)
    try:
        for each in (result for some in results.values() for result in some):
            each.wait(PATIENCE_SECONDS)
        print_table(results)
        try:
            refused.wait(PATIENCE_SECONDS)
        except TaskFailedError as error:
            sys.stdout.write(f"\nglobex's question that the model refuses: {error}\n")
    finally:
        worker.terminate()
        worker.wait()
        subprocess.run([*manage, "fairque_server", "stop"], cwd=HERE, check=True)


def print_table(results: dict[str, list]) -> None:
    """Print for each customer how many attempts its questions took, and after how long they were answered."""
    sys.stdout.write(f"\n{'customer':<10}{'answers':>8}{'busy':>6}{'failures':>10}{'median':>10}{'longest':>10}\n")
    for customer, some in results.items():
        tasks = [result.refresh().task for result in some]
        attempts = [attempt.error or "" for result in some for attempt in result.errors]
        busy = sum("is busy" in error for error in attempts)
        times = [task.ended_at - task.created_at for task in tasks]
        row = f"{customer:<10}{len(tasks):>8}{busy:>6}{len(attempts) - busy:>10}{median(times):>8.1f} s{max(times):>8.1f} s"
        sys.stdout.write(f"{row}\n")


if __name__ == "__main__":
    main()
