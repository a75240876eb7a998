"""The names of a shard's keys: the mirror in Python of what the scripts derive.

Everything of one shard lives under one hash tag, ``{queue:shard}``, so that any script touches one slot. Ids are
put into names as they are: the tag is the first pair of braces, and behind it every byte is just a byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.scripting.scripts import BASE_KEYS

if TYPE_CHECKING:
    from collections.abc import Sequence

ORGANIZATION_PREFIX = b"\xff"
"""The prefix of an organization in the shard's ring; no user's id begins with it (``lua/lib/organization.lua``)."""


class Keys:
    """Key names of one shard of one queue; ``str(keys)`` is their common prefix."""

    def __init__(self, prefix: str, queue: str, shard: int = 0) -> None:
        self.shard = shard
        self._prefix = f"{prefix}:{{{queue}:{shard}}}:"
        self.base = tuple(self._prefix + name for name in BASE_KEYS)

    def __str__(self) -> str:
        return self._prefix

    def __call__(self, name: str) -> str:
        """A key without a user or task in its name, such as ``ring``."""
        return self._prefix + name

    def of(self, task_id: str) -> Keys:  # noqa: ARG002 - there is one shard here
        """The keys of the shard that a task lies on."""
        return self

    def stats_of(self, user_ids: Sequence[str]) -> str:  # noqa: ARG002 - here there is one
        """The figures of a shard on which one of these users lies."""
        return self("stats")

    def everywhere(self) -> Sequence[Keys]:
        """Of each shard."""
        return (self,)

    def task(self, task_id: str) -> str:
        return f"{self._prefix}task:{task_id}"

    def payload(self, task_id: str) -> str:
        return f"{self._prefix}payload:{task_id}"

    def history(self, task_id: str) -> str:
        return f"{self._prefix}history:{task_id}"

    def user(self, user_id: str) -> str:
        return f"{self._prefix}user:{user_id}"

    def organization(self, organization: str) -> str:
        return f"{self._prefix}group:{organization}"

    def organization_of(self, user_id: str, organization: str) -> str:  # noqa: ARG002 - there is one shard here
        """The organization's record on the user's shard."""
        return self.organization(organization)

    def members(self, organization: str) -> str:
        """The ring of an organization."""
        return f"{self._prefix}ring:{organization}"

    def normal(self, user_id: str) -> str:
        return f"{self._prefix}queue:user:{user_id}:normal"

    def critical(self, user_id: str) -> str:
        return f"{self._prefix}queue:user:{user_id}:critical"

    def scheduled(self, user_id: str) -> str:
        """The user's scheduled tasks."""
        return f"{self._prefix}queue:user:{user_id}:scheduled"

    def state(self, state: str) -> str:
        return f"{self._prefix}state:{state}"

    def worker(self, worker: str) -> str:
        return f"{self._prefix}worker:{worker}"

    def leases(self, worker: str) -> str:
        return f"{self._prefix}leases:{worker}"

    def revoked(self, worker: str) -> str:
        return f"{self._prefix}revoked:{worker}"

    def waiting(self, task_id: str) -> str:
        """Who waits for the task."""
        return f"{self._prefix}deps:waiting:{task_id}"

    def blocked(self, task_id: str) -> str:
        """What the task waits for."""
        return f"{self._prefix}deps:blocked:{task_id}"

    def reacting(self, task_id: str) -> str:
        """Those of `waiting` that don't wait out a failure."""
        return f"{self._prefix}deps:reacting:{task_id}"

    def remote(self, task_id: str) -> str:
        """What is known here of a task on another shard."""
        return f"{self._prefix}remote:{task_id}"

    def watchers(self, task_id: str) -> str:
        """The shards on which tasks wait for it."""
        return f"{self._prefix}deps:remote:{task_id}"

    def run(self, run_id: str) -> str:
        return f"{self._prefix}run:{run_id}"

    def xcom(self, namespace: str) -> str:
        return f"{self._prefix}xcom:{namespace}"

    def delivered(self, task_id: str) -> str:
        """That the task came out of an outbox already."""
        return f"{self._prefix}delivered:{task_id}"

    def unique(self, user: str, key: str) -> str:
        return f"{self._prefix}unique:{len(user.encode())}:{user}:{key}"

    def minute(self, minute: int) -> str:
        return f"{self._prefix}stats:{minute}"

    def reply(self, nonce: str) -> str:
        return f"{self._prefix}reply:{nonce}"
