"""The records of the users with the longest waits in each half hour of the last day. `django_fairque.monitoring.wait_history`
reads them.

A worker that sweeps a shard records a sample once a minute (`record_sample` in ``engine/maintenance/samples.py``): for
at most `SAMPLED_USERS` users, the wait of the oldest ready task that nothing holds back. The record of a half hour
keeps the `KEPT_USERS` users with the longest waits. All records of a shard are in one hash of `KEPT_HALF_HOURS` fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from django_fairque.engine.inspection.worker_activity import encode_json, valid_text

HALF_HOUR_SECONDS = 1800
SHOWN_HALF_HOURS = 48
KEPT_HALF_HOURS = SHOWN_HALF_HOURS + 2
KEPT_USERS = 15
"""The number of users in the record of each half hour and shard."""
SAMPLED_USERS = 60
"""The largest number of users whose records are read for a sample."""
RECORDED_WAIT_SECONDS = 1
"""The shortest wait that is recorded, in seconds after rounding."""
MAX_NAME_BYTES = 300
"""The largest number of bytes in the id of a recorded user, written as JSON. Only ids with many control characters are
longer."""
HISTORY_KEY = "stats:waits"


@dataclass(frozen=True)
class SampledWait:
    """A user with ready tasks that nothing holds back: ``seconds`` is how long the oldest of them has waited, and
    ``ready`` is their number.
    """

    user_id: str
    seconds: float
    ready: int


@dataclass(frozen=True)
class HalfHour:
    """The longest waits of one ``half_hour`` (× 1800 is its start as Unix time).

    ``median_seconds`` is the largest median of the waits of all sampled users of a minute. ``users`` has by user the
    longest wait in whole seconds and the largest number of ready tasks.
    """

    half_hour: int
    median_seconds: int
    users: Mapping[str, tuple[int, int]]

    @classmethod
    def from_waits(cls, now: float, waits: Sequence[SampledWait]) -> HalfHour:
        """Return the record of one sample."""
        users = {wait.user_id: (round(wait.seconds), wait.ready) for wait in waits}
        middle = round(median([wait.seconds for wait in waits])) if waits else 0
        return cls(int(now) // HALF_HOUR_SECONDS, middle, users).keep_recorded_users()

    @property
    def field(self) -> str:
        """The field of the record in the hash. The field is used again after `KEPT_HALF_HOURS` half hours."""
        return str(self.half_hour % KEPT_HALF_HOURS)

    def with_earlier(self, earlier: HalfHour | None) -> HalfHour:
        """Return this record merged with the earlier record of the same half hour."""
        if earlier is None or earlier.half_hour != self.half_hour:
            return self
        users = {
            user: (
                max(half_hour.users.get(user, (0, 0))[0] for half_hour in (self, earlier)),
                max(half_hour.users.get(user, (0, 0))[1] for half_hour in (self, earlier)),
            )
            for user in {**earlier.users, **self.users}
        }
        return HalfHour(self.half_hour, max(self.median_seconds, earlier.median_seconds), users).keep_recorded_users()

    def keep_recorded_users(self) -> HalfHour:
        """Return this record with only the users that are kept."""
        fitting = [
            (user, found)
            for user, found in self.users.items()
            if found[0] >= RECORDED_WAIT_SECONDS and len(encode_json(user)) <= MAX_NAME_BYTES
        ]
        longest = sorted(fitting, key=lambda item: (-item[1][0], item[0]))[:KEPT_USERS]
        return HalfHour(self.half_hour, self.median_seconds, dict(longest))

    def pack(self) -> str:
        """Return the record as the server keeps it."""
        return encode_json([self.half_hour, self.median_seconds, self.users]).decode()

    @classmethod
    def parse(cls, packed: bytes | None) -> HalfHour | None:
        """Return the record in these bytes; None if it is absent or damaged."""
        try:
            half_hour, middle, users = json.loads(packed or b"")
            found = {valid_text(user): (int(wait), int(ready)) for user, (wait, ready) in users.items()}
            return cls(int(half_hour), int(middle), found)
        except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
            return None
