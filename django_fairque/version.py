"""Which version of this package is installed."""

__version__ = "0.1.0"
"""The version of the package."""
