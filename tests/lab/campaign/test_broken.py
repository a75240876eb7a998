"""Each way to break the engine still finds the line that it breaks: else the slow test of it would be the first to say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.campaign import broken_engines as broken


@pytest.mark.parametrize("name", broken.BREAKS)
def test_a_broken_engine_lacks_the_original_line(name: str, tmp_path: Path) -> None:
    change = broken.BREAKS[name]
    assert change.old not in (broken.make(name, tmp_path) / change.file).read_text()
