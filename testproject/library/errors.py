from __future__ import annotations


class DemonstrationError(Exception):
    """The demonstration can't be played, or not to its end."""


class NoSourcesError(DemonstrationError):
    """There are no source files to work on."""


class WorkerFailedError(DemonstrationError):
    """The worker, or the site, did not start, or ended before it was stopped."""


class StalledError(DemonstrationError):
    """No task has ended for a long time although there are some."""


class IncompleteError(DemonstrationError):
    """Something was sent and never done."""
