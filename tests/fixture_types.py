"""Types of the objects that most tests get from fixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.test import Client
from redis import Redis

from django_fairque.engine.queue.queue import FairQueue
from tests.conftest import MakeServer
from tests.servers import Server

if TYPE_CHECKING:
    from pytest_django import Settings
else:
    Settings = object  # the oldest pytest-django has no such name

__all__ = ["Client", "FairQueue", "MakeServer", "Redis", "Server", "Settings"]
