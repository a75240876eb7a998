"""Lists that commands print: a table with a heading, or a JSON object per line. All lists have the same options."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from django_fairque.management.base import positive
from django_fairque.monitoring.formatting import Heading, plain, read_age

T = TypeVar("T")

MAX_SORTED_ROWS = 10_000
"""Maximum number of rows that are read for sorting. If a list is longer, only its first rows are sorted, and a line
says that there are more."""
ROWS_PER_BLOCK = 1000
"""Number of rows for which the column widths are calculated together, so that a list of any length is printed while it
is read."""


def age(text: str) -> float:
    """Parse an age such as ``90s``, ``10m``, ``2h`` or ``7d`` to seconds. Used as ``type`` of an argument."""
    try:
        return read_age(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a list.

    Args:
        name: the heading of the column, which is also its name for ``--sort``.
        cell: returns the text of the column in a row.
        key: returns the value by which ``--sort`` sorts a row; None (the default) if the list can't be sorted by this
            column.
        is_number: whether cells are aligned to the right. Default: False.
    """

    name: str
    cell: Callable[[T], str]
    key: Callable[[T], Any] | None = None
    is_number: bool = False


@dataclass(frozen=True)
class Listing(Generic[T]):
    """The list that a command prints.

    Args:
        thing: the word for the objects in the rows, for the help.
        columns: the columns of the table.
        fields: returns the JSON object of a row.
        limit: the number of rows that are printed by default; None (the default) for all.
        moment: returns the Unix time of a row for ``--since``, None if the row has none. Default: None, for a list
            without ``--since``.
        moment_name: the name of the row's time, for the help.
    """

    thing: str
    columns: Sequence[Column[T]]
    fields: Callable[[T], dict[str, Any]]
    limit: int | None = None
    moment: Callable[[T], float | None] | None = None
    moment_name: str = ""

    def add_options(self, parser: ArgumentParser, *, with_json: bool = True) -> None:
        """Add ``--limit``, ``--sort``, ``--reverse``, ``--json``, and ``--since`` if a row has a time.

        Args:
            parser: the parser of the command or the action.
            with_json: whether to add ``--json`` (the default). A command that does not only print lists may already
                have this option.
        """
        add = parser.add_argument
        default = "all" if self.limit is None else self.limit
        add("--limit", type=positive, default=self.limit, metavar="N", help=f"show at most N (default: {default})")
        names = [column.name for column in self.columns if column.key]
        sort = f"sort by {', '.join(names)} (of at most {MAX_SORTED_ROWS:,} that are read)"
        add("--sort", choices=names, metavar="COLUMN", help=sort)
        add("--reverse", action="store_true", help="with --sort: the largest first")
        if with_json:
            add("--json", action="store_true", help=f"as one JSON object per line, a line per {self.thing}")
        if self.moment:
            since = f"only those {self.moment_name} within this age, such as 10m, 12h or 7d"
            add("--since", type=age, metavar="AGE", help=since)

    def page_size(self, options: dict[str, Any], most: int = 1000) -> int:
        """Return the number of rows to read at once, at most ``most``. Without ``--sort`` and ``--since``, it is at
        most one more than the number of printed rows.
        """
        is_whole = options["sort"] is not None or options.get("since") is not None
        return most if is_whole or options["limit"] is None else min(most, options["limit"] + 1)

    def lines(self, items: Iterable[T], options: dict[str, Any]) -> Iterator[str]:
        """Yield the lines of a list.

        Args:
            items: the rows; only as many as needed are read.
            options: the options of the command.

        Raises:
            ValueError: ``--reverse`` was given without ``--sort``.
        """
        if options["reverse"] and options["sort"] is None:
            raise ValueError("--reverse belongs to --sort: give both")
        rows, limit = iter(items), options["limit"]
        if self.moment and options["since"] is not None:
            rows = self._filter_recent(rows, time.time() - options["since"])
        is_cut = False
        if options["sort"] is not None:
            read = list(islice(rows, MAX_SORTED_ROWS))
            is_cut = next(rows, None) is not None
            rows = iter(self._sort_rows(read, options["sort"], reverse=options["reverse"]))
        shown = rows if limit is None else islice(rows, limit)
        if options["json"]:
            yield from (json.dumps(self.fields(row)) for row in shown)
            return
        yield from self.table(shown)
        if is_cut:
            yield f"there are more than the {MAX_SORTED_ROWS:,} that were sorted"
        elif limit is not None and next(rows, None) is not None:
            yield f"{limit:,} shown; there are more"

    def _filter_recent(self, rows: Iterator[T], begin: float) -> Iterator[T]:
        assert self.moment is not None  # noqa: S101 - the caller looked
        for row in rows:
            moment = self.moment(row)
            if moment is not None and moment >= begin:
                yield row

    def _sort_rows(self, rows: list[T], name: str, *, reverse: bool) -> list[T]:
        (key,) = (column.key for column in self.columns if column.name == name and column.key)
        known = sorted((row for row in rows if key(row) is not None), key=key, reverse=reverse)
        return known + [row for row in rows if key(row) is None]

    def table(self, items: Iterable[T]) -> Iterator[str]:
        """Yield the heading and a line for each row. Without rows, yield only the heading."""
        rows = iter(items)
        head = tuple(column.name for column in self.columns)
        block = [head]
        widths = [0] * len(self.columns)
        is_end = False
        while not is_end:
            read = list(islice(rows, ROWS_PER_BLOCK))
            is_end = len(read) < ROWS_PER_BLOCK
            block += [tuple(plain(column.cell(row)) for column in self.columns) for row in read]
            widths = [max(map(len, cells)) for cells in zip(*block, (" " * width for width in widths), strict=True)]
            for cells in block:
                parts = zip(cells, widths, self.columns, strict=True)
                aligned = (f"{cell:{'>' if column.is_number else '<'}{width}}" for cell, width, column in parts)
                yield (Heading if cells is head else str)("  ".join(aligned).rstrip())
            block = []
