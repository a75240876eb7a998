"""Every page, in the menu's order. The first is where the admin's index leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .overview import Overview
from .queues import Queues

if TYPE_CHECKING:
    from .page import Page

PAGES: tuple[type[Page], ...] = (Overview, Queues)
