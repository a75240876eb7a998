"""Tasks kept in the project's database, in the transaction that enqueues them, until their queue has them.

Without an outbox a process that dies, or loses the server, right after a commit loses what it was about to enqueue. With
``OUTBOX: True`` the transaction writes a row for each task. Right after the commit the process relays its rows; workers
relay those that are left over. The engine remembers what was delivered until the row is gone (``deliver.lua``), so a row
that is relayed twice is one task.
"""

from __future__ import annotations

from django.db import router


def has_outbox(database: str) -> bool:
    """Whether a router lets the table of an outbox be made in a database. In another one nothing can be kept."""
    from django_fairque.models import OutboxEntry

    return bool(router.allow_migrate_model(database, OutboxEntry))
