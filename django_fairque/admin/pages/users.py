"""The list of users: the share that each received, who waits, and each one's limits; and the forms that change limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin.pages.base import Action, AdminPage, InvalidForm, NotHereError, Question, accepted, at_most
from django_fairque.engine.inspection.pages import ResultPage
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.ids import MAX_ID_BYTES, check_id
from django_fairque.engine.statistics.queue_stats import Percentiles, total_usage
from django_fairque.engine.users.users import MAX_LIMIT_VALUES, UserQueue, UserStats, parse_rate
from django_fairque.monitoring.formatting import duration, number, share

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise
    from typing_extensions import Self

    from django_fairque.engine.users.organizations import OrganizationQueue, OrganizationStats
    from django_fairque.engine.users.users import UserStats


def _weight(help_text: StrOrPromise) -> forms.FloatField:
    return forms.FloatField(label=gettext_lazy("Weight"), min_value=0.001, max_value=1000, help_text=help_text)


def _limit(name: str, label: StrOrPromise, help_text: StrOrPromise = "") -> forms.IntegerField:
    most = MAX_LIMIT_VALUES[name]
    return forms.IntegerField(label=label, required=False, min_value=1, max_value=most, help_text=help_text)


class SettingsForm(forms.Form):
    """Its fields are named as those of the figures that they begin with."""

    @classmethod
    def of(cls, stats: UserStats | OrganizationStats) -> Self:
        """What holds now."""
        return cls(initial={name: getattr(stats, name) for name in cls.base_fields})


class OrganizationForm(SettingsForm):
    weight = _weight(gettext_lazy("2 is twice the share of a user of weight 1, for all members together"))
    max_running = _limit(
        "max_running",
        gettext_lazy("Running at once"),
        gettext_lazy("tasks of all members together; empty for no limit"),
    )


class LimitsForm(SettingsForm):
    """Empty: no limit, or the queue's own."""

    weight = _weight(gettext_lazy("2 is twice the share of a user of weight 1"))
    organization = forms.CharField(
        label=gettext_lazy("Organization"),
        required=False,
        max_length=MAX_ID_BYTES,
        strip=False,
        help_text=gettext_lazy("its members share what one user would get; empty for none"),
    )
    max_running = _limit("max_running", gettext_lazy("Running at once"))
    rate = forms.CharField(
        label=gettext_lazy("Rate"),
        required=False,
        max_length=40,
        help_text=gettext_lazy("starts per unit of time, such as 100/m or 5/10s"),
    )
    burst = _limit("burst", gettext_lazy("Burst"), gettext_lazy("with a rate: how many may start at once; 1 if empty"))
    max_backlog = _limit(
        "max_backlog", gettext_lazy("Backlog"), gettext_lazy("waiting tasks beyond which more are refused")
    )
    sla = forms.FloatField(
        label=gettext_lazy("SLA"), required=False, help_text=gettext_lazy("seconds; empty for each priority's own")
    )

    def clean_organization(self) -> str | None:
        text: str = self.cleaned_data["organization"]
        return accepted(check_id, text, "organization") if text else None

    def clean_rate(self) -> str | None:
        text: str | None = self.cleaned_data["rate"].strip() or None
        accepted(parse_rate, text)
        return text

    def apply(self, user: UserQueue) -> list[str]:
        """Set what differs from what holds now; the names of that. `InvalidForm` says what was wrong."""
        if not self.is_valid():
            raise InvalidForm(self)
        now = user.stats()
        values = dict(self.cleaned_data)
        values["burst"] = (values["burst"] or 1) if values["rate"] else None
        changes = {name: value for name, value in values.items() if value != getattr(now, name)}
        if "rate" in changes:
            changes.pop("burst", None)  # set with it
        # The SLA comes first: only the engine can check it, and if it is refused, no other limit may have changed.
        names = sorted(changes, key=lambda name: name != "sla")
        return [self._set(user, name, changes[name]) for name in names]

    def _set(self, user: UserQueue, name: str, value: Any) -> str:
        try:
            if name in ("rate", "burst"):  # one setting of two values
                user.set_rate(self.cleaned_data["rate"], burst=self.cleaned_data["burst"] or 1)
            else:
                getattr(user, f"set_{name}")(value)
        except TaskValidationError as error:
            raise InvalidForm(self, name, error) from None
        return str(self.fields[name].label)


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
    """One user of the table. ``received`` and ``fair`` are fractions of 1; nothing is fair for users who enqueued nothing."""

    stats: UserStats
    received: float
    fair: float | None
    is_noisy: bool

    @property
    def user_id(self) -> str:
        return self.stats.user_id

    @property
    def waiting(self) -> int:
        return waiting(self.stats)

    @property
    def wait(self) -> Percentiles | None:
        """None when nothing has started in the last hour."""
        return self.stats.last_hour.wait if self.stats.last_hour.wait.count else None

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
        fair = self.fair or 0.0
        if self.received < BEHIND * fair:
            return _("less than its share")
        return _("more than its share: others left it") if self.received > AHEAD * fair else _("has its share")


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
    received = {each.user_id: each.last_hour.busy_seconds / busy if busy else 0.0 for each in users}
    return [UserRow(each, received[each.user_id], fair.get(each.user_id), each.user_id in noisy) for each in users]


def _fair_shares(users: Sequence[UserStats]) -> dict[str, float]:
    """Shares of users and organizations by their weights; within an organization by those of its members."""
    outside: dict[tuple[bool, str], float] = {}
    inside: dict[tuple[bool, str], float] = {}
    holders = [(bool(each.organization), each.organization or each.user_id) for each in users]
    for each, at in zip(users, holders, strict=True):
        outside[at] = each.weight if each.organization is None else each.organization_weight
        inside[at] = inside.get(at, 0.0) + each.weight
    whole = sum(outside.values())
    pairs = zip(users, holders, strict=True)
    return {each.user_id: outside[at] / whole * each.weight / inside[at] for each, at in pairs}


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


class UsersPage(AdminPage):
    """A table of users, those with something to do first. ``?organization=`` limits it to members; ``?user=`` shows one user with
    its settings.
    """

    name = "users"
    title = gettext_lazy("Users")
    permission = "view_user"
    subject_field = "user"

    def template_context(self) -> dict[str, Any]:
        stats = self.queue.get_stats()
        wanted = self.request.GET.get("user", "")
        organization = "" if wanted else self.request.GET.get("organization", "")
        return {
            "wait_p50": duration(stats.wait.p50),
            "wait_p95": duration(stats.wait.p95),
            "kept": duration(self.queue.config.user_ttl),
            **(self._one(wanted) if wanted else self._table(organization)),
            "wanted": wanted,
            "organization": organization,
            "organization_url": self.url("organizations", organization=organization) if organization else "",
            "all": self.url(self.name),
        }

    def _table(self, organization: str) -> dict[str, Any]:
        queue, cursor = self.queue, self.request.GET.get("cursor") or None
        try:
            members = queue.organization(organization) if organization else None
        except TaskValidationError as error:
            return {"problem": str(error)}
        try:
            page = _members(members, cursor) if members else queue.users(cursor, USERS_PER_PAGE, busy_first=True)
        except TaskValidationError:
            raise NotHereError(_("There is no such page of users: this is the first.")) from None
        # Noisy users may be on any of many pages: those with most waiting tasks are compared with the first page.
        busiest = [] if cursor or organization else queue.busiest_users()
        others = [user_id for user_id in busiest if user_id not in page.items][:BUSY_USERS_COMPARED]
        stats = queue.user_stats([*page.items, *others])
        table = rows(stats[: len(page.items)], stats[len(page.items) :])
        return {
            "table": [(row, self.url(self.name, user=row.user_id)) for row in table],
            "remarks": remarks(table),
            **self.paging(page.cursor, **({"organization": organization} if organization else {})),
            "looked_at": number(MEMBERS_PER_READ * MEMBER_READS_PER_PAGE),
        }

    def _one(self, user_id: str) -> dict[str, Any]:
        self.refreshes = False
        try:
            stats = self.queue.user(user_id).stats()
        except TaskValidationError as error:
            return {"problem": str(error)}
        (row,) = rows([stats])
        is_set = row.limits or stats.organization or stats.paused or stats.weight != 1
        is_known = bool(stats.sizes.total or stats.started or is_set)
        return {"row": row, "is_recorded": is_known, "form": self.form or LimitsForm.of(stats)}

    @Action("change_user")
    def pause(self) -> str:
        self.queue.user(self.subject).pause()
        return _("User %(user)s is paused: none of its tasks start; what runs goes on.") % {"user": self.subject}

    @Action("change_user")
    def resume(self) -> str:
        self.queue.user(self.subject).resume()
        return _("User %(user)s is resumed.") % {"user": self.subject}

    @Action("change_user")
    def limits(self) -> str:
        changed = LimitsForm(self.request.POST).apply(self.queue.user(self.subject))
        if not changed:
            return _("Nothing was changed for user %(user)s.") % {"user": self.subject}
        return _("Changed for user %(user)s: %(what)s.") % {"user": self.subject, "what": ", ".join(changed)}

    @Action("delete_user")
    def purge(self) -> str:
        user = self.queue.user(self.subject)

        def left() -> int:
            return waiting(user.stats())

        if not left():
            text = _("User %(user)s has nothing waiting, so there is nothing to purge.")
            raise ValueError(text % {"user": self.subject})
        return self.purge_slice(user.purge, left, self._purged, self._whether_to_purge)

    def _purged(self, count: int) -> str:
        sentence = ngettext(
            "%(count)d task of user %(user)s was canceled.", "%(count)d tasks of user %(user)s were canceled.", count
        )
        return sentence % {"count": count, "user": self.subject}

    def _whether_to_purge(self, count: int, *before: str) -> Question:
        sentence = ngettext(
            "%(count)d task that user %(user)s has waiting will be canceled. It can't be brought back.",
            "All %(count)d tasks that user %(user)s has waiting will be canceled. They can't be brought back.",
            count,
        )
        text = [*before, sentence % {"count": count, "user": self.subject}, at_most(count)]
        yes, title = (_("Continue"), _("Go on?")) if before else (_("Cancel what waits"), "")
        return Question(text, yes, title)
