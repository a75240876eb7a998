"""The comparison of two versions finds tasks that start in another order, and none between equal versions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.lab.benchmarks.processes import ROOT
from tests.lab.order.__main__ import compare, first_difference


@pytest.mark.slow
@pytest.mark.parametrize("is_changed", [False, True])
def test_only_a_version_with_another_order_differs(tmp_path: Path, is_changed: bool) -> None:
    shutil.copytree(ROOT / "django_fairque", tmp_path / "django_fairque")
    ring = tmp_path / "django_fairque" / "engine" / "lua" / "lib" / "ring.lua"
    text = ring.read_text()
    changed = text.replace("one.came > 0", "one.came > 1e300") if is_changed else text
    assert (changed != text) == is_changed
    ring.write_text(changed)
    found = compare(ROOT, tmp_path, range(4))
    assert (found.worlds, bool(found.different)) == (4, is_changed)
    assert found.starts > (0 if is_changed else 1_000)


def test_the_first_start_that_differs_is_found() -> None:
    assert first_difference(["a", "b"], ["a", "b"]) is None
    assert first_difference(["a", "b"], ["a", "c"]) == 1
    assert first_difference(["a"], ["a", "c"]) == 1
