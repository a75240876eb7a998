"""The format of a queue's data on the server: a number that each shard keeps in its counters.

Every command compares this number with the number of its release before it reads anything else. So releases that
would misread each other's data refuse to work. Raise `FORMAT` with a change after which an older version would misread
or lose data, and add a line to the table in ``docs/guides/upgrading.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import DataFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = 3
"""The format that this release reads and writes."""
FORMAT_VERSIONS = {1: "0.1.0", 2: "0.1.0", 3: "0.1.0"}
"""The first version of the package that uses each format."""
UNNUMBERED_FORMAT = 1
"""The format of data without a number, which code from before the number wrote."""
FORMAT_FIELDS = ("format", "format_version", "clock")
"""Fields of a shard's counters: the format, the first version of the package that uses it, and the time of the last call."""


def check_format(queue: str, values: Sequence[bytes | None]) -> None:
    """Raise `DataFormatError` if a shard's `FORMAT_FIELDS` have these ``values`` and this version can't use its data."""
    number, version, clock = values
    found = int(number) if number and number.isdigit() else UNNUMBERED_FORMAT if clock else FORMAT
    if found != FORMAT:
        raise format_error(queue, found, version.decode(errors="replace") if version else "")


def format_error(queue: str, found: int, version: str) -> DataFormatError:
    """Return the error for a queue whose data have the format ``found``, used since ``version`` ('' if it is not recorded)."""
    version = version or FORMAT_VERSIONS.get(found, "")
    is_older = found < FORMAT
    source = f" (from django_fairque {version} on)" if version else ""
    message = (
        f"the data of queue {queue!r} have format {found}{source}, and this process uses format {FORMAT} (from "
        f"{FORMAT_VERSIONS[FORMAT]} on). Nothing was changed. "
    )
    if is_older:
        advice = (
            f"To upgrade, stop all workers (tasks may wait) and run 'manage.py fairque_format --queue {queue} --to {FORMAT}' "
            "with this version; to stay with the older version, install it here again"
        )
    else:
        advice = (
            "Install a version that uses it here; or, to go back to this one, stop all workers (tasks may wait) and run "
            f"'manage.py fairque_format --queue {queue} --to {FORMAT}' with the newer version"
        )
    return DataFormatError(message + advice)
