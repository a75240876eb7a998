"""Tasks kept in the project's database, in the transaction that enqueues them, until their queue has them.

Without an outbox, a process that dies or loses the server right after a commit loses the tasks that it was about to enqueue. With
``OUTBOX: True`` the transaction writes a row for each task. Right after the commit the process relays its rows; workers
relay the rows that are left over. The engine remembers delivered tasks until the row is deleted (``deliver.lua``), so a row
that is relayed twice is one task.
"""

from __future__ import annotations

from django.db import router


def has_outbox(database: str) -> bool:
    """Whether a router allows the table of an outbox in a database. Without the table, no task can be kept."""
    from django_fairque.models import OutboxEntry

    return bool(router.allow_migrate_model(database, OutboxEntry))
