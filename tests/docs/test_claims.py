"""Each claim of claims.md is on its page, its tests exist, and the change that makes it false can be made.

``python -m tests.tools.break_claims`` makes the changes, and runs the tests.
"""

from __future__ import annotations

import pytest

from tests.docs.claims import PAGE, read_changes, read_claims
from tests.tools.break_claims import judge

FEWEST_CLAIMS = 40
CLAIMS, CHANGES = read_claims(), read_changes()


def test_the_page_of_claims_has_enough_rows_and_each_is_read() -> None:
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS) >= FEWEST_CLAIMS
    assert len(CLAIMS) == PAGE.read_text().count("\n| ") - 1  # one row is the head of the table
    assert list(CHANGES) == [claim.text for claim in CLAIMS]


def test_each_claim_is_on_its_page_with_tests_and_a_code_change_that_breaks_it() -> None:
    for claim in CLAIMS:
        text = (PAGE.parent / claim.page).read_text()
        assert claim.text in " ".join(text.split())
        assert claim.test_ids, claim.text
        assert ", ".join(f"`{file}::{function}`" for file, function in claim.named_tests) == claim.tests
        change = CHANGES[claim.text]
        assert change.file.startswith("django_fairque/"), claim.text
        assert change.before != change.after, claim.text
        assert change.count() == 1, f"{change.file} must have the text once: {change.before}"


@pytest.mark.parametrize(
    ("status", "output", "is_noticed"),
    [
        (1, "FAILED tests/test_a.py::test_b - assert 1 == 2\n1 failed, 2 passed", True),
        (0, "3 passed", False),
        (1, "ERROR tests/test_a.py::test_b - the server did not start\n1 error", False),
        (4, "no tests ran", False),
        (None, "", False),
    ],
)
def test_a_change_counts_as_noticed_only_if_a_test_fails(status: int | None, output: str, *, is_noticed: bool) -> None:
    assert judge(status, output)[0] is is_noticed
