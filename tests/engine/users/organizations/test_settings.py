"""Settings of organizations, their figures, the keys that they leave, and their possible names."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.queue.queue import FairQueue
from tests.counting import commands
from tests.engine.conftest import NOW, push_many, read_pages
from tests.engine.leasing.test_fairness import HOSTILE, served

from .making import join, members

P = "fq:{default:0}:"


class TestLimitsOfAnOrganization:
    def test_a_cap_holds_for_all_members_together(self, queue: FairQueue) -> None:
        join(queue, "g", *members("g", 5))
        queue.organization("g").set_max_running(2, now=NOW)
        for user in members("g", 5):
            push_many(queue, user, 2)
        push_many(queue, "alone", 3)
        leases = queue.pop_batch(9, "w", now=NOW)
        assert Counter(user.partition(".")[0] for user in served(leases)) == {"alone": 3, "g": 2}
        queue.finish(next(lease for lease in leases if lease.user_id == "g.0"), now=NOW)
        assert served(queue.pop_batch(9, "w", now=NOW)) == ["g.2"]
        queue.organization("g").set_max_running(None, now=NOW)
        assert len(queue.pop_batch(9, "w", now=NOW)) == 7

    def test_a_paused_organization_is_not_served_and_keeps_its_tasks(self, queue: FairQueue) -> None:
        join(queue, "g", "a")
        push_many(queue, "a", 2)
        queue.organization("g").pause(now=NOW)
        push_many(queue, "a", 1)
        assert queue.pop("w", now=NOW) is None
        assert queue.pop("w", ["a"], now=NOW) is None
        assert queue.organization("g").stats().paused
        queue.organization("g").resume(now=NOW)
        assert queue.wait_for_work(1)
        assert len(queue.pop_batch(9, "w", now=NOW)) == 3

    def test_a_task_of_a_paused_organization_wakes_no_worker(self, queue: FairQueue, redis: Redis) -> None:
        join(queue, "g", "a")
        queue.organization("g").pause(now=NOW)
        push_many(queue, "a", 1)
        assert not redis.exists(f"{P}wake")


class TestMembers:
    def test_members_are_listed_a_page_of_users_at_a_time(self, queue: FairQueue) -> None:
        join(queue, "g", *members("g", 5))
        join(queue, "g*", "b")
        push_many(queue, "alone", 1)
        assert sorted(read_pages(queue.organization("g").members)) == members("g", 5)
        assert sorted(read_pages(lambda cursor: queue.organization("g").members(cursor, 2), 2)) == members("g", 5)
        assert queue.organization("g*").members().items == ["b"]
        assert queue.organization("nobody").members().items == []

    @pytest.mark.parametrize("name", HOSTILE)
    def test_members_are_listed_for_an_organization_of_any_name(self, queue: FairQueue, name: str) -> None:
        join(queue, name, name, "b")
        assert sorted(queue.organization(name).members().items) == sorted([name, "b"])

    def test_a_user_who_leaves_an_organization_is_no_member(self, queue: FairQueue) -> None:
        join(queue, "g", "a", "b")
        queue.user("a").set_organization(None, now=NOW)
        assert queue.organization("g").members().items == ["b"]


class TestLists:
    def test_members_in_a_list_of_users_share_their_organization_s_turn(self, queue: FairQueue) -> None:
        join(queue, "g", "b", "c", "e")
        for name in "abcde":
            push_many(queue, name, 2)
        leases = queue.pop_batch(9, "w", users=["b", "c", "d", "nobody"], steal=["a", "e"], now=NOW)
        assert served(leases) == ["b", "d", "c", "d", "b", "c", "a", "a", "e"]
        assert served(queue.pop_batch(9, "w", users=["b"], steal="*", now=NOW)) == ["e"]

    def test_a_member_served_by_a_list_costs_no_turn(self, queue: FairQueue) -> None:
        join(queue, "g", "a", "b")
        for name in ("a", "b", "x"):
            push_many(queue, name, 2)
        assert served(queue.pop_batch(6, "w", users=["a"], steal="*", now=NOW)) == ["a", "a", "b", "x", "b", "x"]

    def test_a_list_of_thousands_of_members_is_checked_with_few_commands(self, queue: FairQueue, redis: Redis) -> None:
        names = members("g", 2000)
        join(queue, "g", "g.0", "g.1999")
        push_many(queue, "g.1999", 2)
        assert commands(redis, lambda: queue.pop("w", names, ["x"], now=NOW)) <= 24


class TestReading:
    def test_a_user_has_its_organization_and_an_organization_its_figures(self, queue: FairQueue) -> None:
        queue.organization("g").set_weight(2.5, now=NOW)
        queue.organization("g").set_max_running(7, now=NOW)
        join(queue, "g", "a", "b")
        push_many(queue, "a", 2)
        queue.pop("w", now=NOW)
        a, c = queue.user_stats(["a", "c"])
        assert (a.organization, a.organization_weight, c.organization, c.organization_weight) == ("g", 2.5, None, 1.0)
        assert (a.organization_paused, a.organization_is_full) == (False, False)
        queue.organization("g").set_max_running(1, now=NOW)
        queue.organization("g").pause(now=NOW)
        a, c = queue.user_stats(["a", "c"])
        assert (a.organization_paused, a.organization_is_full) == (True, True)
        assert (c.organization_paused, c.organization_is_full) == (False, False)
        queue.organization("g").set_max_running(7, now=NOW)
        queue.organization("g").resume(now=NOW)
        found = queue.organization("g").stats()
        assert (found.weight, found.max_running, found.paused) == (2.5, 7, False)
        assert (found.members, found.members_ready, found.running, found.started) == (2, 1, 1, 1)
        assert queue.get_stats().users_ready == 1
        (shard,) = queue.get_shard_stats()
        assert shard.users_ready == 1

    def test_ready_users_are_counted_instead_of_their_organizations(self, crowd: FairQueue) -> None:
        assert crowd.get_stats().users_ready == 101
        crowd.organization("crowd").pause(now=NOW)
        assert crowd.get_stats().users_ready == 101

    def test_organizations_are_listed_page_by_page(self, queue: FairQueue) -> None:
        names = sorted([f"g{i:03}" for i in range(25)] + ["[x", "(y", "-", "+"], key=str.encode)
        for name in names:
            queue.organization(name).set_weight(2, now=NOW)
        assert read_pages(lambda cursor: queue.organizations(cursor, 10), 10) == names
        assert [organization.organization for organization in queue.organization_stats(["g001", "none"])] == [
            "g001",
            "none",
        ]

    def test_the_wait_reason_of_a_member_s_task_names_its_organization(self, queue: FairQueue) -> None:
        join(queue, "g", "a", "b")
        push_many(queue, "alone", 1)
        push_many(queue, "a", 1)
        (task_id,) = push_many(queue, "b", 1)
        standing = queue.wait_reason(task_id)
        assert standing.users_before == 2
        assert standing.organization is not None
        assert standing.organization.organization == "g"
        queue.user("b").pause(now=NOW)
        assert queue.wait_reason(task_id).users_before is None


class TestKeptData:
    def test_an_organization_without_members_and_settings_is_removed(self, queue: FairQueue, redis: Redis) -> None:
        join(queue, "g", "a")
        push_many(queue, "a", 1)
        queue.organization("g").set_weight(2, now=NOW)
        queue.organization("g").set_weight(1, now=NOW)
        queue.finish(queue.pop_batch(1, "w", now=NOW)[0], now=NOW)
        assert queue.organizations().items == ["g"]
        join(queue, None, "a")
        assert queue.organizations().items == []
        assert [key for key in redis.scan_iter() if b"group" in key or b"ring" in key] == []

    def test_a_former_member_is_removed_when_idle(self, queue: FairQueue) -> None:
        join(queue, "g", "a")
        queue.sweep(now=NOW + 10**7)
        assert queue.user("a").stats().organization == "g"
        join(queue, None, "a", now=NOW + 10**7)
        queue.sweep(now=NOW + 2 * 10**7)
        assert queue.users().items == []

    def test_settings_of_an_organization_stay_without_members(self, queue: FairQueue) -> None:
        queue.organization("g").set_weight(3, now=NOW)
        join(queue, "g", "a")
        join(queue, None, "a")
        assert queue.organization("g").stats().weight == 3

    def test_leaving_no_organization_makes_no_record(self, queue: FairQueue) -> None:
        join(queue, None, "a")
        assert queue.users().items == []


@pytest.mark.parametrize("name", [*HOSTILE, "\u00ff", "nan", "1e9", "g:ring"])
def test_an_organization_name_may_contain_any_characters(queue: FairQueue, name: str) -> None:
    """A member and another user may have the same name as the organization."""
    join(queue, name, "a", name)
    join(queue, "b", "b")
    for user in ("a", "b", name, "c"):
        push_many(queue, user, 2)
    assert queue.user("a").stats().organization == name
    assert set(queue.organizations().items) == {name, "b"}
    assert queue.check_invariants() == []
    assert served(queue.pop_batch(8, "w", now=NOW)) == ["a", "b", "c", name, "b", "c", "a", name]
    queue.organization(name).set_weight(2, now=NOW)
    assert queue.organization(name).stats().weight == 2


class TestBadInput:
    @pytest.mark.parametrize("name", ["", "x" * 257, "\ud800", 7])
    def test_an_invalid_organization_name_is_refused(self, queue: FairQueue, name: Any) -> None:
        for call in (lambda: queue.organization(name), lambda: queue.user("a").set_organization(name)):
            with pytest.raises(TaskValidationError, match="organization must be"):
                call()
        with pytest.raises(TaskValidationError, match="each of the organizations must be"):
            queue.organization_stats([name])

    @pytest.mark.parametrize("weight", [0, -1, 1001, float("nan"), "2", True, None])
    def test_an_invalid_organization_weight_is_refused(self, queue: FairQueue, weight: Any) -> None:
        with pytest.raises(TaskValidationError, match="weight must be a number from"):
            queue.organization("g").set_weight(weight)
