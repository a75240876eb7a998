"""The format of a queue's data on the server: a number that each shard keeps in its counters.

Every command compares this number with the number of its release before it reads anything else. So releases that
would misread each other's data refuse to work. Raise `FORMAT` with a change after which an older version would misread
or lose data. After the first release, such a change brings a conversion from the format of the released version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import DataFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = 3
"""The format that this release reads and writes."""
FORMAT_VERSION = "0.1.0"
"""The first version of the package that uses this format."""
UNNUMBERED_FORMAT = 1
"""The format of data without a number, which code from before the number wrote."""
FORMAT_FIELDS = ("format", "format_version", "clock")
"""Fields of a shard's counters: the format, the first version of the package that uses it, and the time of the last call."""


def parse_format(values: Sequence[bytes | None]) -> int | None:
    """Return the format of a shard whose `FORMAT_FIELDS` have these ``values``; None if it has no data."""
    number, _, clock = values
    return int(number) if number and number.isdigit() else UNNUMBERED_FORMAT if clock else None


def check_format(queue: str, values: Sequence[bytes | None]) -> None:
    """Raise `DataFormatError` if a shard's `FORMAT_FIELDS` have these ``values`` and this version can't use its data."""
    found = parse_format(values)
    if found not in (None, FORMAT):
        raise format_error(queue, found, (values[1] or b"").decode(errors="replace"))


def format_error(queue: str, found: int, version: str) -> DataFormatError:
    """Return the error for a queue whose data have the format ``found``, used since ``version`` ('' if it is not recorded)."""
    source = f" (from django_fairque {version} on)" if version else ""
    if found < FORMAT:
        advice = (
            "Install the version that wrote them here again; or let its workers finish all tasks, delete the queue's keys "
            f"(those with {{{queue}: in their names), and start this version"
        )
    else:
        advice = "Install a version that uses it here"
    return DataFormatError(
        f"the data of queue {queue!r} have format {found}{source}, and this process uses format {FORMAT} (from "
        f"{FORMAT_VERSION} on). Nothing was changed. {advice}"
    )
