"""The tables of the noisy neighbor cookbook are measured: each row is computed again on a real server."""

from __future__ import annotations

from itertools import count

import pytest

from django_fairque import FairQueue
from tests.docs.blocks import DOCS
from tests.docs.cookbook import RECIPES, table
from tests.fixture_types import Redis


@pytest.mark.parametrize("name", RECIPES)
def test_the_table_of_a_recipe_is_what_is_measured(name: str, redis: Redis) -> None:
    numbers = count()
    text = (DOCS / "guides" / "noisy-neighbors.md").read_text()
    measured = table(name, lambda: FairQueue(redis, f"q{next(numbers)}"))
    assert f"<!-- measured: {name} -->\n\n{measured}" in text
