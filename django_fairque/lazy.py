"""Imports the public names of a package when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def export_lazily(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return the functions ``__getattr__`` and ``__dir__`` and the list ``__all__`` for a package.

    ``modules`` contains the modules of the package, each with the names that it defines, separated by spaces. These
    functions must be hidden from type checkers, because otherwise every name would seem to exist. For type checkers,
    the package imports each name explicitly (``from .module import Name as Name``, which marks the name as public).
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = import_module(f"{package}.{homes[name]}")
        # stored in the package, so that the next access is as fast as in any module
        value = vars(import_module(package))[name] = getattr(found, name)
        return value

    return get, lambda: sorted(homes), sorted(homes)
