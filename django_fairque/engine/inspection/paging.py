"""Pages over several shards, one shard after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from django_fairque.engine.inspection.pages import Page, wrong_cursor

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Steps
    from django_fairque.engine.sharding.shards import Shards

T = TypeVar("T")


def walk(
    shards: Shards,
    limit: int,
    cursor: str | None,
    read: Callable[[Commands, int, str | None], Steps[tuple[list[T], str | None, bool]]],
) -> Steps[Page[T]]:
    """A page: as much of it as the shards have from the cursor on.

    ``read`` returns items, its own cursor to go on, and whether it looked at as much as one page may.
    """
    at, inner = place(shards, cursor)
    items: list[T] = []
    for number in range(at, len(shards)):
        if not shards.is_present(shards.all[number]):
            inner = None
            continue
        found, inner, is_enough = yield from read(shards.all[number], limit - len(items), inner)
        items += found
        if inner is not None and (is_enough or len(items) >= limit):
            return Page(items, cursor_of(shards, number, inner), shards.missing)
        if len(items) >= limit:
            return Page(items, cursor_of(shards, number + 1, None), shards.missing)
        inner = None
    return Page(items, None, shards.missing)


def place(shards: Shards, cursor: str | None) -> tuple[int, str | None]:
    """The shard to go on with, and its own cursor."""
    if cursor is None or len(shards) == 1:
        return 0, cursor
    number, separator, inner = cursor.partition("!") if isinstance(cursor, str) else ("", "", "")
    if not (separator and number.isascii() and number.isdecimal() and len(number) < 5 and int(number) < len(shards)):
        raise wrong_cursor(cursor)
    return int(number), inner or None


def cursor_of(shards: Shards, number: int, inner: str | None) -> str | None:
    """The other way round; None behind the last shard."""
    if len(shards) == 1:
        return inner
    return f"{number}!{inner or ''}" if number < len(shards) else None
