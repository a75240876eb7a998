"""Dead letters in pages without what they carry, and counted before something is done to all that match."""

from __future__ import annotations

from typing import Any

import pytest

from django_fairque.engine.dead_letters import dead_letters as dead_letter_operations
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, read_pages
from tests.engine.dead_letters.test_dead_letters import bury


def walk(queue: FairQueue, limit: int, **filters: Any) -> list[str]:
    letters = read_pages(lambda cursor: queue.dlq.letters(limit, cursor, now=NOW + 50, **filters), limit)
    return [letter.entry_id for letter in letters]


def test_pages_of_dead_letters_contain_each_entry_once_even_with_equal_times(queue: FairQueue) -> None:
    entries = [bury(queue, at=NOW + number // 4) for number in range(10)]
    for limit in (1, 3, 10, 1000):
        assert sorted(walk(queue, limit)) == sorted(entries)


def test_a_page_of_dead_letters_continues_at_its_cursor_after_entries_were_removed(queue: FairQueue) -> None:
    entries = [bury(queue, at=NOW + number) for number in range(6)]
    cursor = queue.dlq.letters(3).cursor
    queue.dlq.discard_many(entries[:3])
    assert [letter.entry_id for letter in queue.dlq.letters(3, cursor).items] == entries[3:]


def test_filters_select_matching_dead_letters(queue: FairQueue) -> None:
    bury(queue)
    other = bury(queue, user="v", at=NOW + 10)
    bury(queue, at=NOW + 20)
    assert walk(queue, 1, user_id="v") == [other]
    assert walk(queue, 5, older_than=35, newer_than=45) == [other]
    assert walk(queue, 5, moved_until=NOW + 10, user_id="v") == [other]
    assert walk(queue, 5, moved_until=NOW + 9.999, user_id="v") == []


def test_a_page_of_dead_letters_reads_at_most_100_entries(queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_operations, "MAX_DEAD_LETTERS_READ", 100)
    for number in range(101):
        bury(queue, at=NOW + number)
    late = bury(queue, user="v", at=NOW + 200)
    first = queue.dlq.letters(5, user_id="v")
    assert first.items == []
    assert [letter.entry_id for letter in queue.dlq.letters(5, first.cursor, user_id="v").items] == [late]


def test_matching_dead_letters_are_counted_with_a_fixed_upper_time(queue: FairQueue) -> None:
    for number in range(3):
        bury(queue, user="v", at=NOW + number)
    bury(queue, at=NOW)
    for filters, count in (({}, 4), ({"user_id": "v"}, 3), ({"user_id": "v", "older_than": 9.0}, 2)):
        found = queue.dlq.matching(now=NOW + 10, **filters)
        assert (found.count, found.is_whole) == (count, True)
    assert found.until == NOW + 1
    bury(queue, user="v", at=NOW + 11)
    assert queue.dlq.matching(now=NOW + 20, user_id="v", moved_until=found.until).count == 2
    assert queue.dlq.discard_all(now=NOW + 20, user_id="v", moved_until=found.until) == 2
    assert queue.dlq.count() == 3


def test_a_count_of_many_dead_letters_covers_only_the_oldest(queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_operations, "MAX_DEAD_LETTERS_READ", 2)
    for number in range(3):
        bury(queue, at=NOW + number)
    some = queue.dlq.matching(user_id="u", now=NOW + 10)
    assert (some.count, some.looked_at, some.is_whole) == (2, 2, False)
    every = queue.dlq.matching(now=NOW + 10)
    assert (every.count, every.is_whole) == (3, True), "without filters the server counts all of them at once"
