"""The tables of the noisy neighbor cookbook are measured: each row is computed again on a real server."""

from __future__ import annotations

from itertools import count

import pytest

from django_fairque import FairQueue
from tests.docs.blocks import DOCS
from tests.docs.cookbook import RECIPES, table
from tests.fixture_types import Redis

FOLDER = DOCS / "guides" / "noisy-neighbors"


@pytest.mark.parametrize("name", RECIPES)
def test_the_table_of_a_recipe_has_the_measured_values(name: str, redis: Redis) -> None:
    numbers = count()
    measured = table(name, lambda: FairQueue(redis, f"q{next(numbers)}"))
    assert f"<!-- measured -->\n\n{measured}" in (FOLDER / f"{name}.md").read_text(), measured


def test_each_recipe_has_a_measured_table_and_an_index_entry() -> None:
    pages = {page.stem for page in FOLDER.glob("*.md")}
    assert pages == set(RECIPES)
    index = FOLDER.with_suffix(".md").read_text()
    assert [name for name in pages if f"](noisy-neighbors/{name}.md)" not in index] == []
