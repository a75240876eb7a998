"""Which version of this package is installed."""

from __future__ import annotations

__version__ = "0.1.0"
"""The version of the package."""
