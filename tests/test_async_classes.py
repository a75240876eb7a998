"""The generated asynchronous classes: up to date, complete, and documented."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

from tests import async_classes

if TYPE_CHECKING:
    from collections.abc import Iterator


def _classes() -> Iterator[tuple[type, type]]:
    """Each synchronous class with its twin."""
    for each in async_classes.CLASSES:
        modules = [path.removesuffix(".py").replace("/", ".") for path in (each.module, each.written_to)]
        plain, awaited = (__import__(f"django_fairque.{module}", fromlist=["x"]) for module in modules)
        yield getattr(plain, each.name), getattr(awaited, f"Async{each.name}")


CLASSES = list(_classes())


def test_they_are_up_to_date() -> None:
    outdated = [path.name for path, text in async_classes.generated().items() if text != path.read_text()]
    assert outdated == [], "run python -m tests.async_classes"


@pytest.mark.parametrize(("plain", "awaited"), CLASSES, ids=lambda each: each.__name__)
def test_each_public_method_is_there_and_documented(plain: type, awaited: type) -> None:
    for name, method in inspect.getmembers(plain, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.getdoc(getattr(awaited, name)), name
            assert inspect.signature(getattr(awaited, name)).parameters == inspect.signature(method).parameters, name


def test_calls_are_awaited_and_what_takes_a_result_apart_has_parentheses() -> None:
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
