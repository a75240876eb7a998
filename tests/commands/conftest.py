"""A queue on an empty server, a command as a person runs it, and tasks for it to find."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any, Protocol

import pytest
from django.core.management import call_command, get_commands, load_command_class

from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
from tests.fixture_types import FairQueue, Redis, Server, Settings
from tests.leases import pop

COMMANDS = sorted(name for name, app in get_commands().items() if app == "django_fairque")
MANAGE = Path(__file__).parent.parent.parent / "testproject" / "manage.py"


def parser_of(command: str) -> Any:
    return load_command_class("django_fairque", command).create_parser("manage.py", command)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Run(Protocol):
    """Run a command and return its output; its errors go to ``err``."""

    def __call__(self, *words: str, err: StringIO | None = None) -> str: ...


class Push(Protocol):
    """The id of a new task; the options are those of `Task.create`."""

    def __call__(self, user: str = "acme", **options: Any) -> str: ...


class Bury(Protocol):
    """The entry of a new dead letter."""

    def __call__(
        self, error: BaseException | str = "no such address", *, user: str = "acme", payload: object = None
    ) -> str: ...


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    return get_queue()


@pytest.fixture
def run() -> Run:
    def command(*words: str, err: StringIO | None = None) -> str:
        out = StringIO()
        call_command(*words, stdout=out, stderr=err or StringIO(), no_color=True)
        return out.getvalue()

    return command


@pytest.fixture
def push(queue: FairQueue) -> Push:
    def one(user: str = "acme", **options: Any) -> str:
        return queue.push(Task.create(user, 3, **{"payload": {"n": 1}, "name": "mail.send", **options})).task_id

    return one


@pytest.fixture
def bury(queue: FairQueue, push: Push) -> Bury:
    def one(error: BaseException | str = "no such address", *, user: str = "acme", payload: object = None) -> str:
        task_id = push(user, payload={"n": 1} if payload is None else payload)
        queue.fail(pop(queue, "w", [user]), error, retry=False)
        return f"{task_id}~1"

    return one
