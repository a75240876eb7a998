"""The version of the installed package."""

__version__ = "0.1.0"
"""The version of the package."""
