"""Packages whose public names are imported when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def export_lazily(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    ``modules`` are the modules of the package, each with the names that it defines, separated by spaces. A type checker
    sees none of this, or every name would exist for it: the package imports each name for it, as itself
    (``from .module import Name as Name``, which marks the name as public).
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = import_module(f"{package}.{homes[name]}")
        value = vars(import_module(package))[name] = getattr(found, name)  # the next use is as fast as of any module
        return value

    return get, lambda: sorted(homes), sorted(homes)
