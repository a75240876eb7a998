"""Users: the fairness page. Who got how much, who waits, what holds for each; and changing that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin.pages.base import Action, FormPage, NotHereError, Question, at_most, posted, purge
from django_fairque.admin.pages.limit_forms import LimitsForm
from django_fairque.engine.inspection.pages import ResultPage
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.statistics.timeline import total_usage
from django_fairque.monitoring.formatting import duration, number, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.http import HttpRequest
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.users.organizations import OrganizationQueue
    from django_fairque.engine.users.users import UserStats

NOISY_MIN_TASKS = 20
"""Waiting tasks below which nobody is noisy."""
TIMES_OTHERS = 10
"""How many times the median of waiting tasks, of the others who have some, are far above it."""
BEHIND, AHEAD = 0.9, 1.1
"""Parts of the fair share within which a share is fair."""
PROMPT = 1.0
"""Seconds of waiting (p95) within which nobody suffers."""


@dataclass(frozen=True)
class UserRow:
    """One user of the table: fractions of 1, figures as text."""

    stats: UserStats
    received: float
    fair: float
    is_noisy: bool

    @property
    def user_id(self) -> str:
        return self.stats.user_id

    @property
    def waiting(self) -> int:
        return waiting(self.stats)

    @property
    def received_text(self) -> str:
        return share(self.received)

    @property
    def fair_text(self) -> str:
        """A dash for users who enqueued nothing."""
        return share(self.fair) if self.fair else "–"

    @property
    def received_percent(self) -> int:
        return round(self.received * 100)

    @property
    def fair_percent(self) -> int:
        return round(self.fair * 100)

    @property
    def worked_text(self) -> str:
        return duration(self.stats.last_hour.busy_seconds)

    @property
    def wait_p50(self) -> str:
        return self._wait(self.stats.last_hour.wait.p50)

    @property
    def wait_p95(self) -> str:
        return self._wait(self.stats.last_hour.wait.p95)

    def _wait(self, seconds: float) -> str:
        """A dash when nothing has started in the last hour."""
        return duration(seconds) if self.stats.last_hour.wait.count else "–"

    @property
    def organization_text(self) -> str:
        """Which it belongs to, in words; empty for none."""
        return _("organization %(value)s") % {"value": self.stats.organization} if self.stats.organization else ""

    @property
    def limits(self) -> list[str]:
        """What it has to keep to, in words."""
        stats = self.stats
        known = {
            _("at most %(value)s at once"): stats.max_running and number(stats.max_running),
            _("rate %(value)s"): stats.rate,
            _("backlog %(value)s"): stats.max_backlog and number(stats.max_backlog),
            _("starts within %(value)s"): stats.sla and duration(stats.sla),
        }
        return [text % {"value": value} for text, value in known.items() if value]

    @property
    def verdict(self) -> str:
        """What the two shares mean for this user."""
        stats = self.stats
        if stats.paused or stats.organization_paused:
            return _("paused") if stats.paused else _("its organization is paused")
        if not self.waiting:
            return _("received all it needed") if self.fair else _("had no tasks")
        is_full = stats.max_running is not None and stats.sizes.running >= stats.max_running
        if is_full or stats.organization_is_full:
            return _("waits for its own running tasks") if is_full else _("waits for running tasks of its organization")
        if self.received < BEHIND * self.fair:
            return _("less than its share")
        return _("more than its share: others left it") if self.received > AHEAD * self.fair else _("has its share")


def waiting(stats: UserStats) -> int:
    """What has not begun, for whatever reason."""
    return stats.sizes.total - stats.sizes.running


def rows(users: Sequence[UserStats], others: Sequence[UserStats] = ()) -> list[UserRow]:
    """These users, and the noisy ones of the ``others``; noisy ones first. Their shares are of what
    all of them got in the last hour.

    Fair ones follow from the weights of the users that had tasks in it.
    """
    noisy = _noisy([*users, *others])
    users = [*users, *(each for each in others if each.user_id in noisy)]
    users.sort(key=lambda each: each.user_id not in noisy)
    busy = sum(each.last_hour.busy_seconds for each in users)
    fair = _fair_shares([each for each in users if _has_demand(each)])
    return [
        UserRow(
            each,
            each.last_hour.busy_seconds / busy if busy else 0.0,
            fair.get(each.user_id, 0.0),
            each.user_id in noisy,
        )
        for each in users
    ]


def _fair_shares(users: Sequence[UserStats]) -> dict[str, float]:
    """Shares of users and organizations by their weights; within an organization by those of its members."""
    outside: dict[tuple[str, bool], float] = {}
    inside: dict[tuple[str, bool], float] = {}
    for each in users:
        at = _standing(each)
        outside[at] = each.weight if each.organization is None else each.organization_weight
        inside[at] = inside.get(at, 0.0) + each.weight
    whole = sum(outside.values())
    return {each.user_id: outside[at] / whole * each.weight / inside[at] for each in users for at in [_standing(each)]}


def _standing(stats: UserStats) -> tuple[str, bool]:
    """Who has the share: the user, or its organization."""
    return (stats.user_id, False) if stats.organization is None else (stats.organization, True)


def _has_demand(stats: UserStats) -> bool:
    recent = stats.last_hour
    return bool(stats.sizes.total or recent.wait.count or recent.busy_seconds)


def _noisy(users: Sequence[UserStats]) -> set[str]:
    """Those with far more waiting than half of the others who have anything waiting."""
    found = set()
    for each in users:
        others = [waiting(other) for other in users if other is not each]
        usual = median([count for count in others if count] or [0])
        if others and waiting(each) >= max(NOISY_MIN_TASKS, TIMES_OTHERS * usual):
            found.add(each.user_id)
    return found


def remarks(table: Sequence[UserRow]) -> list[str]:
    """A sentence or two about each noisy user, and whether the quiet ones suffered."""
    quiet = [row.stats for row in table if not row.is_noisy and not _is_held_back(row.stats)]
    total = sum(row.waiting for row in table)
    return [
        _("User %(user)s has %(waiting)s tasks waiting, %(part)s of what waits here.")
        % {"user": row.user_id, "waiting": number(row.waiting), "part": share(row.waiting / total)}
        + " "
        + _fate(row.stats, quiet)
        for row in table
        if row.is_noisy
    ]


def _is_held_back(stats: UserStats) -> bool:
    """Whether it may wait for its own limits rather than for others."""
    own = stats.paused or stats.max_running is not None or stats.rate is not None
    return own or stats.organization_paused or stats.organization_is_full


def _fate(loud: UserStats, quiet: Sequence[UserStats]) -> str:
    served = [each.last_hour for each in quiet if each.last_hour.wait.count]
    theirs, own = total_usage(served).wait, loud.last_hour.wait
    if not (theirs.count and own.count):
        return _("How long the other users wait is not known yet.")
    facts = {"count": len(served), "theirs": duration(theirs.p95), "own": duration(own.p95)}
    if theirs.p95 > max(own.p95, PROMPT):
        text = ngettext(
            "In the last hour 95 %% of the tasks of %(count)d other user started within about %(theirs)s, "
            "of this one's within about %(own)s: they wait longer than it does.",
            "In the last hour 95 %% of the tasks of %(count)d other users started within about %(theirs)s, "
            "of this one's within about %(own)s: they wait longer than it does.",
            len(served),
        )
    else:
        text = ngettext(
            "In the last hour 95 %% of the tasks of %(count)d other user started within about %(theirs)s, "
            "of this one's within about %(own)s: they did not suffer from it.",
            "In the last hour 95 %% of the tasks of %(count)d other users started within about %(theirs)s, "
            "of this one's within about %(own)s: they did not suffer from it.",
            len(served),
        )
    return text % facts


USERS_PER_PAGE = 50
MEMBERS_PER_READ = 100
"""Users among whom members of an organization are looked for in one read."""
MEMBER_READS_PER_PAGE = 10
"""Reads for one page of members, at most: an organization's record does not name them."""
BUSY_USERS_COMPARED = 10
"""Users of other pages, at most, who are looked at because much of what waits is theirs."""


def _members(organization: OrganizationQueue, cursor: str | None) -> ResultPage[str]:
    """Members among the next users of the queue: about a page of them, or as many as there are among a thousand."""
    found: list[str] = []
    for _look in range(MEMBER_READS_PER_PAGE):
        page = organization.members(cursor, MEMBERS_PER_READ)
        found += page.items
        cursor = page.cursor
        if cursor is None or len(found) >= USERS_PER_PAGE:
            break
    return ResultPage(found, cursor, page.missing_shards)


def _purged(user_id: str, count: int) -> str:
    sentence = ngettext(
        "%(count)d task of user %(user)s was canceled.", "%(count)d tasks of user %(user)s were canceled.", count
    )
    return sentence % {"count": count, "user": user_id}


def _whether_to_purge(user_id: str, count: int, *before: str) -> Question:
    sentence = ngettext(
        "%(count)d task that user %(user)s has waiting will be canceled. It can't be brought back.",
        "All %(count)d tasks that user %(user)s has waiting will be canceled. They can't be brought back.",
        count,
    )
    text = [*before, sentence % {"count": count, "user": user_id}, at_most(count)]
    yes, title = (_("Continue"), _("Go on?")) if before else (_("Cancel what waits"), "")
    return Question(text, yes, {"user": user_id}, title=title)


def _user_of(page: UsersPage, request: HttpRequest) -> str:
    return posted(request, "user")


class UsersPage(FormPage):
    """A table of users, those with something to do first. ``?organization=`` limits it to members; ``?user=`` shows one user with
    its settings.
    """

    name = "users"
    path = "users/"
    title: ClassVar[StrOrPromise] = gettext_lazy("Users")
    permission = "view_user"
    template = "admin/django_fairque/users.html"

    def template_context(self, queue: FairQueue) -> dict[str, Any]:
        stats = queue.get_stats()
        common = {
            "wait_p50": duration(stats.wait.p50),
            "wait_p95": duration(stats.wait.p95),
            "kept": duration(queue.config.user_ttl),
        }
        wanted = self.request.GET.get("user", "")
        organization = "" if wanted else self.request.GET.get("organization", "")
        return {
            **common,
            **(self._one(queue, wanted) if wanted else self._table(queue, organization)),
            "wanted": wanted,
            "organization": organization,
            "organization_url": self.url("organizations", organization=organization) if organization else "",
            "all": self.url(self.name),
        }

    def _table(self, queue: FairQueue, organization: str) -> dict[str, Any]:
        cursor = self.request.GET.get("cursor") or None
        try:
            members = queue.organization(organization) if organization else None
        except TaskValidationError as error:
            return {"problem": str(error)}
        try:
            page = _members(members, cursor) if members else queue.users(cursor, USERS_PER_PAGE, busy_first=True)
        except TaskValidationError:
            raise NotHereError(_("There is no such page of users: this is the first.")) from None
        others = [] if cursor or organization else self._suspects(queue, page.items)
        stats = queue.user_stats([*page.items, *others])
        table = rows(stats[: len(page.items)], stats[len(page.items) :])
        of_organization = {"organization": organization} if organization else {}
        return {
            "table": [(row, self.url(self.name, user=row.user_id)) for row in table],
            "remarks": remarks(table),
            "next": self.url(self.name, cursor=page.cursor, **of_organization) if page.cursor else "",
            "first": self.url(self.name, **of_organization) if cursor else "",
            "looked_at": number(MEMBERS_PER_READ * MEMBER_READS_PER_PAGE),
        }

    @staticmethod
    def _suspects(queue: FairQueue, listed: Sequence[str]) -> list[str]:
        """Who may be noisy and is not on the page: there can be any number of pages, and a noisy user on any of them."""
        known = set(listed)
        return [user_id for user_id in queue.busiest_users() if user_id not in known][:BUSY_USERS_COMPARED]

    def _one(self, queue: FairQueue, user_id: str) -> dict[str, Any]:
        self.hold()
        try:
            stats = queue.user(user_id).stats()
        except TaskValidationError as error:
            return {"problem": str(error)}
        (row,) = rows([stats])
        is_set = row.limits or stats.organization or stats.paused or stats.weight != 1
        is_known = bool(stats.sizes.total or stats.started or is_set)
        return {"row": row, "is_recorded": is_known, "form": self.form or LimitsForm.of(stats)}

    def pause(self, queue: FairQueue, request: HttpRequest) -> str:
        user_id = posted(request, "user")
        queue.user(user_id).pause()
        return _("User %(user)s is paused: none of its tasks start; what runs goes on.") % {"user": user_id}

    def resume(self, queue: FairQueue, request: HttpRequest) -> str:
        user_id = posted(request, "user")
        queue.user(user_id).resume()
        return _("User %(user)s is resumed.") % {"user": user_id}

    def limits(self, queue: FairQueue, request: HttpRequest) -> str:
        user_id = posted(request, "user")
        changed = LimitsForm(request.POST).apply(queue.user(user_id))
        if not changed:
            return _("Nothing was changed for user %(user)s.") % {"user": user_id}
        return _("Changed for user %(user)s: %(what)s.") % {"user": user_id, "what": ", ".join(changed)}

    def purge(self, queue: FairQueue, request: HttpRequest) -> str:
        user_id = posted(request, "user")
        user = queue.user(user_id)

        def left() -> int:
            return waiting(user.stats())

        if not left():
            raise ValueError(_("User %(user)s has nothing waiting, so there is nothing to purge.") % {"user": user_id})
        texts = partial(_purged, user_id), partial(_whether_to_purge, user_id)
        return purge(self, user_id, queue, user.purge, left, *texts)

    actions: ClassVar[dict[str, Action]] = {
        "pause": Action("change_user", pause, _user_of),
        "resume": Action("change_user", resume, _user_of),
        "limits": Action("change_user", limits, _user_of),
        "purge": Action("delete_user", purge, _user_of),
    }
