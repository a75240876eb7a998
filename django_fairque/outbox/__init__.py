"""The outbox: tasks are stored in the project's database, in the transaction that enqueues them, until they are in
their queue.

Without an outbox, a process that dies or loses the server right after a commit loses the tasks that it was about to
enqueue. With ``OUTBOX: True`` the transaction writes a row for each task. Right after the commit the process relays its
rows; workers relay the rows that are left over. The engine remembers delivered tasks until their row is deleted
(``deliver.lua``), so a row that is relayed twice results in only one task.
"""

from __future__ import annotations

from django.db import router


def has_outbox(database: str) -> bool:
    """Return whether a database router allows the outbox table in a database. Without the table, tasks can't be stored
    there.
    """
    from django_fairque.models import OutboxEntry

    return bool(router.allow_migrate_model(database, OutboxEntry))
