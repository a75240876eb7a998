"""Actions that a person takes on every page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def choose(page: Page, title: str) -> None:
    """Go to a page by the menu that all of them have."""
    page.locator(".fq-menu").get_by_role("link", name=title, exact=True).click()
