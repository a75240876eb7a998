"""``manage.py fairque_health``: shows whether a queue is healthy, for people and for probes."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from django_fairque.conf import get_config
from django_fairque.engine.model.errors import FairQueueError
from django_fairque.engine.queue.served import describe_unserved, find_unserved
from django_fairque.engine.statistics.health import Health
from django_fairque.integrations.webhook import send_test_alert
from django_fairque.management.base import Parser, QueueCommand, queues_with_timeout
from django_fairque.monitoring.formatting import pluralize, size
from django_fairque.monitoring.health import examine_health, worker_health
from django_fairque.monitoring.monitor import close_recovered

EXIT = {"good": 0, "degraded": 1, "down": 2}


class Command(QueueCommand):
    help = (
        "Say whether a queue is good (exit 0), degraded (1) or down (2, no task is accepted), and why; "
        "and what its server is, can do, and keeps, found by trying. Closes incidents that are over. With --worker-file, how "
        "one worker of this machine is."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="as one JSON object")
        parser.add_argument(
            "--test-alert", action="store_true", help="only send a test alert to the webhook (MONITOR['WEBHOOK'])"
        )
        parser.add_argument(
            "--worker-file",
            metavar="PATH",
            type=Path,
            help="ask no server: healthy (exit 0), not well (1), or down (2) by what the worker with this --health-file writes",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        path = options["worker_file"]
        if options["test_alert"]:
            if path is not None or options["json"]:
                raise CommandError("--test-alert can't be combined with --json and --worker-file")
            send_test_alert(options["queue"])
            self.write_lines("the webhook has accepted a test alert")
            return
        health = worker_health(path) if path else self._of_queue(options["queue"])
        if options["json"]:
            self.write_lines(json.dumps(dataclasses.asdict(health)))
        else:
            styles = {"good": self.style.SUCCESS, "degraded": self.style.WARNING, "down": self.style.ERROR}
            self.write_lines(health.status, style=styles[health.status])
            for reason in health.reasons:
                self.write_lines(f"- {reason}")
            if "name" in health.server:
                self.write_lines(_server(health.server))
        sys.exit(EXIT[health.status])

    def _of_queue(self, name: str) -> Health:
        try:
            with queues_with_timeout() as open_queue:
                queue = open_queue(name)
                health = examine_health(queue)
                unserved = find_unserved(map(open_queue, dict.fromkeys([name, *get_config().queues])))
                try:
                    close_recovered(queue)
                except FairQueueError as error:  # this process may have permission only to read
                    self.stderr.write(f"! incidents were not closed: {error}")
        except FairQueueError as error:
            return Health("down", [str(error)], {})
        reasons = [*health.reasons, *(describe_unserved(other) for other in unserved if other != name)]
        status = "degraded" if reasons and health.status == "good" else health.status
        return dataclasses.replace(health, reasons=reasons, status=status)


def _server(server: dict[str, Any]) -> str:
    limit = f" of {size(server['memory_limit'])}" if server["memory_limit"] else ""
    parts = [
        f"{server['name']} {server['version']}",
        f"{server['mode']} ({server['role']}, {pluralize(server['replicas'], 'replica')})",
        f"{size(server['memory_used'])}{limit} of memory used",
        f"eviction {server['eviction'] or 'unknown'}",
    ]
    if "durability" in server:
        parts += [
            f"durability {server['durability']}",
            f"functions {server['functions']}",
            f"scripts {server['scripts']}",
        ]
    return ", ".join(parts)
