"""The queues in Django's admin: one module per page (`pages` lists them), what they share in `page`, charts in `charts`."""

from . import outbox, site

__all__ = ["outbox", "site"]
