"""The public interface has every name that it promises, where it promises it."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

import django_fairque
from tests.public_names import CLASSES, MODULES, names


def fields(kind: Any) -> set[str]:
    """Methods and other attributes of the class, fields of models and of dataclasses, and names that `__init__` sets."""
    of_class = {*dir(kind), *getattr(kind, "model_fields", ()), *getattr(kind, "__dataclass_fields__", ())}
    is_written_out = inspect.isfunction(kind.__init__)
    return of_class | set(kind.__init__.__code__.co_names if is_written_out else ())


@pytest.mark.parametrize("module", MODULES)
def test_a_public_module_has_its_documented_names(module: str) -> None:
    found = import_module(module)
    assert [name for name in names(MODULES[module]) if not hasattr(found, name)] == []


@pytest.mark.parametrize("path", CLASSES)
def test_each_public_class_has_its_documented_members(path: str) -> None:
    module, _, name = path.rpartition(".")
    found = fields(getattr(import_module(module), name))
    assert [name for name in names(CLASSES[path]) if name not in found] == []


def test_the_package_lists_every_name_that_it_promises() -> None:
    assert set(names(MODULES["django_fairque"])) - set(dir(django_fairque)) == set()
