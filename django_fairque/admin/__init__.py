"""The queues in Django's admin.

The module `site` registers the pages in `pages`. The module `outbox` contains the admin of the outbox table, and
`charts` prepares the data of charts.
"""

from . import outbox, site

__all__ = ["outbox", "site"]
