"""The queues in Django's admin.

`site` registers the pages of `pages`, `outbox` is the admin of the outbox's table, `charts` prepares the charts.
"""

from . import outbox, site

__all__ = ["outbox", "site"]
