"""Every page, in the menu's order. The admin's index leads to the first that one may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .dead_letter import DeadLetter
from .dead_letters import DeadLetters
from .dependencies import Dependencies
from .groups import Groups
from .model_events import ModelEvents
from .overview import Overview
from .queues import Queues
from .schedules import Schedules
from .task import TaskPage
from .tasks import Tasks
from .users import Users
from .workers import Workers

if TYPE_CHECKING:
    from .page import Page

PAGES: tuple[type[Page], ...] = (
    *(Overview, Queues, Users, Groups, Tasks),
    *(TaskPage, DeadLetters, DeadLetter, Dependencies),
    *(Schedules, Workers, ModelEvents),
)
