"""The generated asynchronous classes: up to date, complete, and documented."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.queue import async_queue
from tests.tools import async_classes

if TYPE_CHECKING:
    from collections.abc import Iterator


def _classes() -> Iterator[tuple[type, type]]:
    """Each synchronous class with its twin."""
    for name, file in async_classes.CLASSES.items():
        module = import_module("django_fairque." + file.removesuffix(".py").replace("/", "."))
        yield getattr(module, name), getattr(async_queue, f"Async{name}")


CLASSES = list(_classes())


def test_the_generated_async_classes_are_up_to_date() -> None:
    assert async_classes.GENERATED.read_text() == async_classes.generated(), "run python -m tests.tools.async_classes"


@pytest.mark.parametrize(("plain", "awaited"), CLASSES, ids=lambda cls: cls.__name__)
def test_each_public_method_has_an_async_counterpart_with_a_docstring(plain: type, awaited: type) -> None:
    for name, method in inspect.getmembers(plain, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.getdoc(getattr(awaited, name)), name
            assert inspect.signature(getattr(awaited, name)).parameters == inspect.signature(method).parameters, name


def test_generated_calls_are_awaited_and_have_parentheses_before_an_index() -> None:
    source = """
class Sizes:
    def one(self, user):
        \"\"\"Of a user.\"\"\"
        return self._run(sizes([user]))[user]

    def all(self):
        return [self.one(user) for user in self._read_all_shards(lambda shards: self._run(shards))]

    def name(self):
        return self._name
"""
    written = async_classes.async_source(source, "Sizes")
    assert "async def one(self, user):" in written
    assert "return (await self._run(sizes([user])))[user]" in written
    assert "[await self.one(user) for user in await self._read_all_shards(lambda shards: self._run(shards))]" in written
    assert "    def name(self):" in written


def test_module_names_get_a_prefix_and_an_ambiguous_name_is_an_error() -> None:
    names = async_classes.Names()
    first = "from a import b as c\nOWN = 1\nclass X:\n    def f(self, n=OWN):\n        return c(n)\n"
    names.add(ast.parse(first), "X", "engine/x.py")
    written = async_classes.async_source(first, "X", names.prefixes("engine/x.py"))
    assert "def f(self, n=sync_x.OWN):\n        return c(n)" in written
    assert "from django_fairque.engine import x as sync_x" in names.imports()
    with pytest.raises(ValueError, match="c has two meanings"):
        names.add(ast.parse("from a import c\nclass Y:\n    z = c\n"), "Y", "engine/y.py")
