"""Whom the catalogue's tasks are for."""

from __future__ import annotations

from typing import Any


def owner(task: Any, args: list[Any], kwargs: dict[str, Any]) -> object:  # noqa: ARG001 - of any task it is the first argument
    """The owner of the documents, by position or by name; nobody in particular for a task that takes none."""
    return args[0] if args else kwargs.get("owner")
