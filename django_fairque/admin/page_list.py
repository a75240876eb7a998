"""Every page, in the menu's order. The admin's index leads to the first that one may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.admin.pages.dead_letter import DeadLetter
from django_fairque.admin.pages.dead_letters import DeadLetters
from django_fairque.admin.pages.dependencies import Dependencies
from django_fairque.admin.pages.model_events import ModelEvents
from django_fairque.admin.pages.organizations import Organizations
from django_fairque.admin.pages.overview import Overview
from django_fairque.admin.pages.queues import Queues
from django_fairque.admin.pages.schedules import Schedules
from django_fairque.admin.pages.task import TaskPage
from django_fairque.admin.pages.tasks import Tasks
from django_fairque.admin.pages.users import Users
from django_fairque.admin.pages.workers import Workers

if TYPE_CHECKING:
    from django_fairque.admin.pages.base import Page

PAGES: tuple[type[Page], ...] = (
    *(Overview, Queues, Users, Organizations, Tasks),
    *(TaskPage, DeadLetters, DeadLetter, Dependencies),
    *(Schedules, Workers, ModelEvents),
)
