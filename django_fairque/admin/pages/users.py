"""The list of users with their shares, waits and limits, and the forms that change limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib.admin.utils import quote
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.functional import lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin.charts import LineChart, draw_charts
from django_fairque.admin.pages.audit import audit_row
from django_fairque.admin.pages.base import (
    Action,
    AdminPage,
    InvalidForm,
    NotHereError,
    Question,
    at_most,
    lane_rows,
    run_form_check,
)
from django_fairque.audit import MAX_SUBJECT_CHARACTERS, read_entries
from django_fairque.conf import get_config
from django_fairque.engine.inspection.pages import ResultPage
from django_fairque.engine.model.errors import ConfigurationError, RedisConnectionError, TaskValidationError
from django_fairque.engine.model.ids import MAX_ID_BYTES, check_id
from django_fairque.engine.model.limits import parse_rate
from django_fairque.engine.model.pauses import Pause
from django_fairque.engine.model.plans import MAX_LIMIT_VALUES, MAX_SHARE, MIN_SHARE
from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.statistics import queue_stats
from django_fairque.engine.statistics.queue_stats import Percentiles, total_usage
from django_fairque.engine.users import fairness as user_fairness
from django_fairque.engine.users.history import add_up_periods
from django_fairque.engine.users.users import (
    MAX_ENDED_TASKS_EXAMINED,
    UserQueue,
    UserStats,
)
from django_fairque.monitoring.formatting import approximate, duration, number, read_age, share
from django_fairque.monitoring.report import paused_users
from django_fairque.monitoring.translations import word
from django_fairque.monitoring.wait_explanations import describe_paused_users, with_details

if TYPE_CHECKING:
    from django.http import QueryDict
    from django_stubs_ext import StrOrPromise
    from typing_extensions import Self

    from django_fairque.engine.model.lanes import Lane
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards
    from django_fairque.engine.statistics.deployments import Deployment
    from django_fairque.engine.statistics.queue_stats import QueueStats
    from django_fairque.engine.users.fairness import Fairness, UserFairness
    from django_fairque.engine.users.history import UserHistory
    from django_fairque.engine.users.organizations import OrganizationStats
    from django_fairque.engine.users.users import UserStats


def _weight(help_text: StrOrPromise) -> forms.FloatField:
    return forms.FloatField(label=gettext_lazy("Weight"), min_value=0.001, max_value=1000, help_text=help_text)


def _limit(name: str, label: StrOrPromise, help_text: StrOrPromise = "") -> forms.IntegerField:
    most = MAX_LIMIT_VALUES[name]
    return forms.IntegerField(label=label, required=False, min_value=1, max_value=most, help_text=help_text)


class SettingsForm(forms.Form):
    """A form whose fields have the same names as the figures that are their initial values."""

    @classmethod
    def from_stats(cls, stats: UserStats | OrganizationStats) -> Self:
        """Return the form with the current values."""
        return cls(initial={name: getattr(stats, name) for name in cls.base_fields})


class OrganizationForm(SettingsForm):
    weight = _weight(gettext_lazy("2 is twice the share of a user of weight 1, for all members together"))
    share = forms.FloatField(
        label=gettext_lazy("Guaranteed share"),
        required=False,
        min_value=MIN_SHARE,
        max_value=MAX_SHARE,
        help_text=gettext_lazy("part of the worker time while it has tasks: 0.2 is a fifth; empty for none"),
    )
    max_running = _limit(
        "max_running",
        gettext_lazy("Running at once"),
        gettext_lazy("tasks of all members together; empty for no limit"),
    )


class LimitsForm(SettingsForm):
    """The form for a user's limits. An empty field means no limit, or the limit of the queue."""

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
        return run_form_check(check_id, text, "organization") if text else None

    def clean_rate(self) -> str | None:
        text: str | None = self.cleaned_data["rate"].strip() or None
        run_form_check(parse_rate, text)
        return text

    def apply(self, user: UserQueue) -> list[str]:
        """Set the values that differ from the current ones, and return the names of these values. Raises `InvalidForm`
        for mistakes.
        """
        if not self.is_valid():
            raise InvalidForm(self)
        now = user.stats()
        values = dict(self.cleaned_data)
        values["burst"] = (values["burst"] or 1) if values["rate"] else None
        changes = {name: value for name, value in values.items() if value != getattr(now, name)}
        if "rate" in changes:
            changes.pop("burst", None)  # `set_rate` also sets the burst
        # Set the SLA first: only the engine can check it, and if it is refused, no other limit may have been changed.
        names = sorted(changes, key=lambda name: name != "sla")
        return [self._set(user, name, changes[name]) for name in names]

    def _set(self, user: UserQueue, name: str, value: Any) -> str:
        try:
            if name in ("rate", "burst"):  # one call sets the rate and its burst
                user.set_rate(self.cleaned_data["rate"], burst=self.cleaned_data["burst"] or 1)
            else:
                getattr(user, f"set_{name}")(value)
        except TaskValidationError as error:
            raise InvalidForm(self, name, error) from None
        return str(self.fields[name].label)


EXPLICIT_TEXTS = {
    **{name: field.label for name, field in LimitsForm.base_fields.items()},
    "max_backlog_bytes": gettext_lazy("Backlog in bytes"),
    "plan": gettext_lazy("Plan"),
}
"""Texts for settings of a user that a plan can also set, and for the plan, by their names in `UserStats.explicit`."""

PROMPT = 1.0
"""Seconds. A user whose p95 of waits is at most this long does not count as delayed."""
NOISY_USERS_NAMED = 3
"""Maximum number of noisy users that the first sentence names."""
PAUSED_USERS_NAMED = 5

HOLD_TEXTS = {
    "queue_paused": gettext_lazy("the queue is paused"),
    "user_paused": gettext_lazy("paused"),
    "organization_paused": gettext_lazy("its organization is paused"),
    "throttled": gettext_lazy("waits for its rate"),
    "capped": gettext_lazy("waits for its own running tasks"),
    "organization_capped": gettext_lazy("waits for running tasks of its organization"),
}
"""The reasons why no task of a user can start, by the value of ``held_by``."""


def posted_pause(posted: QueryDict) -> Pause:
    """Return the pause that the fields of ``pause_fields.html`` describe.

    Raises:
        ValueError: the time after which the pause ends is invalid.
    """
    after = posted.get("pause_for", "").strip()
    return Pause(" ".join(posted.get("note", "").split()), time.time() + read_age(after) if after else None)


def wait_text(held_by: str | None, *, only_bulk: bool = False) -> str:
    """Return the reason why a user with ready tasks waits."""
    if held_by is not None:
        return str(HOLD_TEXTS[held_by])
    return _("its bulk tasks wait for the others") if only_bulk else _("waits for its turn")


@dataclass(frozen=True)
class UserRow:
    """One user in the table. ``received`` is the user's fraction, from 0 to 1, of the worker time of all users in the
    last hour. The time of running tasks is included up to now.
    """

    stats: UserStats
    received: float
    is_noisy: bool
    is_late: bool

    @property
    def user_id(self) -> str:
        return self.stats.user_id

    @property
    def held_back(self) -> int:
        return self.stats.sizes.ready - self.stats.waiting

    @property
    def lanes(self) -> dict[Lane, int]:
        """The number of the user's ready tasks by lane; empty if there are no urgent and bulk tasks."""
        ready, by_class = self.stats.sizes.ready, self.stats.sizes.by_priority
        urgent, bulk = by_class.get("URGENT", 0), by_class.get("BULK", 0)
        return {"urgent": urgent, "normal": ready - urgent - bulk, "bulk": bulk} if urgent or bulk else {}

    @property
    def lanes_text(self) -> str:
        """The numbers of the user's ready urgent and bulk tasks as text; empty if there are none."""
        counts = ((lane, count) for lane, count in self.lanes.items() if lane != "normal" and count)
        return ", ".join(f"{number(count)} {word(lane)}" for lane, count in counts)

    @property
    def wait(self) -> Percentiles | None:
        """The user's waits in the last hour; None if no task has started."""
        return self.stats.last_hour.wait if self.stats.last_hour.wait.count else None

    @property
    def organization_text(self) -> str:
        """The user's organization as text; empty if there is none."""
        return _("organization %(value)s") % {"value": self.stats.organization} if self.stats.organization else ""

    @property
    def plan_text(self) -> str:
        """The user's plan as text; empty if there is none."""
        return _("plan %(value)s") % {"value": self.stats.plan} if self.stats.plan else ""

    @property
    def own_text(self) -> str:
        """The settings that were made for this user, as text; empty if there are none. A plan does not change these
        settings.
        """
        names = [str(EXPLICIT_TEXTS[name]) for name in self.stats.explicit]
        return _("set for this user: %(names)s") % {"names": ", ".join(names)} if names else ""

    @property
    def limits(self) -> list[str]:
        """The user's limits as texts."""
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
        """The reason why the user waits, as text."""
        stats = self.stats
        if stats.paused or stats.organization_paused:
            return str(HOLD_TEXTS["user_paused" if stats.paused else "organization_paused"])
        if not stats.sizes.ready:
            running = _("all its ready tasks run")
            idle = (
                running
                if stats.sizes.running
                else _("received all it needed")
                if _has_demand(stats)
                else _("had no tasks")
            )
            return _("its tasks wait at limits by key") if stats.sizes.limited else idle
        if stats.held_by:
            return wait_text(stats.held_by)
        if self.is_late and not stats.sizes.running:
            return _("waits longer than expected")
        return wait_text(None, only_bulk=stats.sizes.by_priority.get("BULK", 0) == stats.sizes.ready)


def count_unstarted(stats: UserStats) -> int:
    """Return the number of the user's tasks that have not started."""
    return stats.sizes.total - stats.sizes.running


def rows(users: Sequence[UserStats], fairness: Fairness) -> list[UserRow]:
    """Return a row for each of these users, in the same order."""
    late = {user.user_id for user in fairness.late_users}
    noisy = set(fairness.noisy_users)
    return [
        UserRow(
            stats,
            fairness.share_received(stats.last_hour.busy_seconds),
            is_noisy=stats.user_id in noisy,
            is_late=stats.user_id in late,
        )
        for stats in users
    ]


def _has_demand(stats: UserStats) -> bool:
    recent = stats.last_hour
    return bool(stats.sizes.total or recent.wait.count or recent.busy_seconds)


def summary(fairness: Fairness, workers: int) -> str:
    """Return one sentence: whether and why users wait longer than expected, and whether noisy users delay them."""
    late = len(fairness.late_users)
    if not late:
        first = _("No user waits longer than expected")
    elif not workers:
        first = ngettext(
            "%(count)s user waits longer than expected because no worker runs",
            "%(count)s users wait longer than expected because no worker runs",
            late,
        )
    elif not fairness.running:
        first = ngettext(
            "%(count)s user waits longer than expected because no worker takes its tasks",
            "%(count)s users wait longer than expected because no worker takes their tasks",
            late,
        )
    else:
        first = ngettext(
            "%(count)s user waits longer than expected because workers are busy",
            "%(count)s users wait longer than expected because workers are busy",
            late,
        )
    parts = [first % {"count": number(late)}]
    known = {user.user_id: user for user in fairness.examined}
    for user_id in fairness.noisy_users[:NOISY_USERS_NAMED]:
        noisy = known[user_id]
        facts = {
            "user": user_id,
            "part": share(fairness.share_received(noisy.busy_seconds)),
            "running": number(noisy.running),
            "all": number(fairness.running),
        }
        # Running tasks are not interrupted, so less than one task more than the user's share does not count as excess.
        if late and noisy.running >= noisy.share_if_busy * fairness.running + 1:
            text = ngettext(
                "%(user)s has %(part)s of the work time and runs %(running)s of %(all)s task, more than its share",
                "%(user)s has %(part)s of the work time and runs %(running)s of %(all)s tasks, more than its share",
                fairness.running,
            )
        else:
            text = _("%(user)s has %(part)s of the work time and holds nobody back")
        parts.append(text % facts)
    more = len(fairness.noisy_users) - NOISY_USERS_NAMED
    if more > 0:
        parts.append(
            ngettext("%(count)s more user is noisy", "%(count)s more users are noisy", more) % {"count": number(more)}
        )
    return _("%(sentence)s.") % {"sentence": "; ".join(parts)}


def paused_users_context(fairness: Fairness) -> tuple[str, list[UserFairness]]:
    """Return a sentence about waiting tasks of paused users, and some of these users."""
    users = paused_users(fairness.examined)
    return describe_paused_users(users), users[:PAUSED_USERS_NAMED]


def remarks(table: Sequence[UserRow]) -> list[str]:
    """Return a sentence or two about each noisy user, and whether other users had to wait because of it."""
    quiet = [row.stats for row in table if not row.is_noisy and not _is_held_back(row.stats)]
    return [
        _("User %(user)s has %(waiting)s tasks waiting.") % {"user": row.user_id, "waiting": number(row.stats.waiting)}
        + " "
        + _fate(row.stats, quiet)
        for row in table
        if row.is_noisy
    ]


def _is_held_back(stats: UserStats) -> bool:
    """Return whether the user may wait because of limits of the user, and not because of other users."""
    own = stats.paused or stats.max_running is not None or stats.rate is not None
    return own or stats.organization_paused or stats.organization_is_full


def _fate(loud: UserStats, quiet: Sequence[UserStats]) -> str:
    served = [user.last_hour for user in quiet if user.last_hour.wait.count]
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


SORTS: dict[str, tuple[StrOrPromise, Callable[[UserFairness], float]]] = {
    "waiting": (gettext_lazy("most tasks waiting"), lambda user: user.waiting),
    "wait": (gettext_lazy("longest wait"), lambda user: user.wait_seconds if user.waiting else 0.0),
    "time": (gettext_lazy("most worker time"), lambda user: user.busy_seconds),
    "running": (gettext_lazy("most tasks running"), lambda user: user.running),
}
"""The sort orders of the list, which apply to the examined users: label and sort key."""

USERS_PER_PAGE = 50
MEMBERS_PER_READ = 100
"""Number of the queue's users that one read examines to find members of an organization or users of a plan."""
MEMBER_READS_PER_PAGE = 10
"""Maximum number of reads for one page of members. Members must be searched, because an organization or plan has no
list of them."""
NOISY_USERS_LISTED = 10
"""Maximum number of noisy users from other pages at the beginning of the first page."""
ENDED_TASKS_EXAMINED = MAX_ENDED_TASKS_EXAMINED
"""Number of ended tasks of all users that are examined to find the ended tasks of one user."""
LATEST_ROWS = 20
"""Number of ended tasks, and of operators' changes, that a user's page shows."""
PAGE_USERS_EXAMINED = 500
"""Maximum number of users whose tasks are compared for one page."""


def _read_page(read: Callable[[str | None, int], ResultPage[str]], cursor: str | None) -> ResultPage[str]:
    """Read until about a page of matching users is found, or a thousand users of the queue were examined."""
    found: list[str] = []
    for _look in range(MEMBER_READS_PER_PAGE):
        page = read(cursor, MEMBERS_PER_READ)
        found += page.items
        cursor = page.cursor
        if cursor is None or len(found) >= USERS_PER_PAGE:
            break
    return ResultPage(found, cursor, page.missing_shards)


def _queue_waits(stats: QueueStats) -> dict[str, str]:
    """Return the sentence about the waits of all users; empty if no task has started in the last hour."""
    if not stats.wait.count:
        return {"queue_waits": ""}
    text = _("In the whole queue, in the last hour, half of the tasks waited at most %(p50)s, 95 %% at most %(p95)s.")
    return {"queue_waits": text % {"p50": duration(stats.wait.p50), "p95": duration(stats.wait.p95)}}


def users_label() -> str:
    """Return the project's word for users: ``USERS_LABEL``, or "Users" in the language of the request."""
    try:
        return get_config().users_label or _("Users")
    except ConfigurationError:  # each page shows the mistakes of the configuration
        return _("Users")


@dataclass(frozen=True)
class WeightPreview:
    """The effect of changing the weight of a user now.

    ``share_before`` and ``share_after`` are the user's share, from 0 to 1, if all users had tasks. ``wait_before`` and
    ``wait_after`` are the seconds that the user may have to wait for its turn; None if this is unknown because no task
    runs. ``others`` is the factor for the other users (of the same organization, if the user belongs to one): their
    shares are multiplied by it, and their expected waits are divided by it. None if no other user is active.
    """

    share_before: float
    share_after: float
    wait_before: float | None
    wait_after: float | None
    others: float | None


def preview_weight(user: UserFairness, weight_before: float, weight: float) -> WeightPreview:
    """Calculate what another weight of a user would change.

    Args:
        user: the user's fairness figures, from `FairQueue.fairness`.
        weight_before: the user's current weight.
        weight: the new weight, more than 0.

    Returns:
        Shares and expected waits before and after the change.
    """
    others = user.other_weights
    part_before, part_after = weight_before / (weight_before + others), weight / (weight + others)
    share = min(1.0, user.share_if_busy * part_after / part_before)
    wait = user.expected_wait_seconds or None
    return WeightPreview(
        share_before=user.share_if_busy,
        share_after=share,
        wait_before=wait,
        wait_after=None if wait is None else wait * part_before / part_after,
        others=(weight_before + others) / (weight + others) if others else None,
    )


def weight_sentences(preview: WeightPreview, *, has_organization: bool) -> list[str]:
    """Return sentences about the effects of the new weight."""
    shares = {"before": share(preview.share_before), "after": share(preview.share_after)}
    found = [
        _("If all users that are active now stay busy, its share is %(before)s now, %(after)s with this weight.")
        % shares
    ]
    if preview.wait_before is not None and preview.wait_after is not None:
        waits = {"before": approximate(preview.wait_before), "after": approximate(preview.wait_after)}
        found.append(_("Expected wait for its turn: about %(before)s now, about %(after)s with this weight.") % waits)
    if preview.others is None:
        if has_organization:
            found.append(_("No other member of its organization is active: the weight changes nothing now."))
        else:
            found.append(_("No other user is active: the weight changes nothing now."))
    else:
        if preview.others <= 1:
            text = _("The shares of all others become %(share)s smaller, and their expected waits %(wait)s longer.")
        else:
            text = _("The shares of all others become %(share)s larger, and their expected waits %(wait)s shorter.")
        facts = {"share": share(abs(1 - preview.others)), "wait": share(abs(1 / preview.others - 1))}
        found.append(text % facts)
        if has_organization:
            found.append(_("The others are the members of its organization; nothing changes for other users."))
    return found


CHARTED_HOURS = 24


def _describe_history(history: UserHistory, deployments: Sequence[Deployment]) -> dict[str, Any]:
    """Return the sums since midnight in the time zone of the request, and the charts of the last day."""
    midnight = timezone.localtime().replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    # Figures are kept per whole hour of UTC. In a time zone that differs from UTC by half an hour, the day begins half
    # an hour late.
    today = add_up_periods([period for period in history.hours if period.begin >= midnight] or history.hours[-1:])
    attempts = today.sla_kept + today.sla_missed
    facts = {"today": today, "sla_kept": share(today.sla_kept / attempts) if attempts else "–"}
    hours = history.hours[-CHARTED_HOURS:]
    if not any(hour.wait.count or hour.dead for hour in hours):
        return facts
    counted = {
        _("Finished"): [hour.finished for hour in hours],
        _("Failed attempts"): [hour.failed for hour in hours],
        _("SLA missed"): [hour.sla_missed for hour in hours],
    }
    waits = {
        _("Wait p95"): [hour.wait.p95 if hour.wait.count else None for hour in hours],
        _("Wait p50"): [hour.wait.p50 if hour.wait.count else None for hour in hours],
    }
    charts = [
        LineChart(_("Ended in each hour"), counted, number),
        LineChart(_("Waits in each hour"), waits, duration, _("Gaps: no attempt ended in these hours.")),
    ]
    return {**facts, **draw_charts(charts, [hour.begin for hour in hours], deployments)}


class UsersPage(AdminPage):
    """A table of users; users with ready or running tasks come first.

    ``?organization=`` shows only its members, and ``?plan=`` only users of a plan. ``?user=`` shows one user with its
    settings. With ``&preview=1`` the response contains the effects of a new ``weight``, for the form's script.
    """

    name = "users"
    title = lazy(users_label, str)()
    permission = "view_user"
    preview_permission = "change_user"
    subject_field = "user"

    def preview_context(self) -> dict[str, Any]:
        self._open_queue()
        try:
            weight = LimitsForm.base_fields["weight"].clean(self.request.GET.get("weight", ""))
            return {"weight_sentences": self._preview(self.request.GET.get("user", ""), weight)}
        except ValidationError as error:
            return {"weight_problem": error.messages[0]}
        except (ConfigurationError, RedisConnectionError, TaskValidationError) as error:
            return {"weight_problem": str(error)}

    def _preview(self, user_id: str, weight: float) -> list[str]:
        """Return sentences about the effects of this weight; none if the user already has the weight."""
        stats = self.queue.user(user_id).stats()
        if weight == stats.weight:
            return []
        examined = self.queue.fairness(1, user_ids=[user_id]).examined
        user = next(user for user in examined if user.user_id == user_id)
        has_organization = stats.organization is not None
        return weight_sentences(preview_weight(user, stats.weight, weight), has_organization=has_organization)

    def template_context(self) -> dict[str, Any]:
        wanted = self.request.GET.get("user", "")
        organization, plan = ("" if wanted else self.request.GET.get(name, "") for name in ("organization", "plan"))
        return {
            "kept": duration(self.queue.config.user_ttl),
            **(self._one(wanted) if wanted else self._table(organization, plan)),
            "wanted": wanted,
            "organization": organization,
            "plan": plan,
            "plans": [(name, self.url(self.name, plan=name)) for name in get_config().plans],
            "organization_url": self.url("organizations", organization=organization) if organization else "",
            "all": self.url(self.name),
        }

    def _table(self, organization: str, plan: str) -> dict[str, Any]:
        query = {"prefix": self.request.GET.get("prefix", ""), "sort": self.request.GET.get("sort", "")}
        try:
            page, stats, fairness = self._page(organization, plan, query["prefix"], query["sort"])
        except TaskValidationError as error:
            return {"problem": str(error)}
        # The first page also shows noisy users of other pages, before the users of the page.
        is_first = not (self.request.GET.get("cursor") or organization or plan or query["prefix"] or query["sort"])
        others = [user_id for user_id in fairness.noisy_users if user_id not in page.items] if is_first else []
        noisy = set(fairness.noisy_users)
        names = [*others[:NOISY_USERS_LISTED], *page.items]
        if not query["sort"]:
            names.sort(key=lambda user_id: user_id not in noisy)
        table = rows(self.queue.user_stats(names), fairness)
        kept = {name: value for name, value in {**query, "organization": organization, "plan": plan}.items() if value}
        return {
            "table": [(row, self.url(self.name, user=row.user_id)) for row in table],
            "summary": summary(fairness, stats.workers),
            **_queue_waits(stats),
            "lanes": lane_rows(stats.lanes, {lane: figures.wait for lane, figures in stats.lanes.items()})
            if is_first
            else [],
            "paused": paused_users_context(fairness),
            "remarks": remarks(table),
            "fairness": fairness,
            "examined": len(fairness.examined) if len(fairness.examined) < fairness.users else 0,
            "sorts": self._sorts(query["prefix"]) if not (organization or plan) else [],
            **query,
            **self.build_page_links(page.cursor, **kept),
            "looked_at": number(MEMBERS_PER_READ * MEMBER_READS_PER_PAGE),
        }

    def _sorts(self, prefix: str) -> list[tuple[str, str, str]]:
        """Return the sort orders of the page: name, label and URL."""
        kept = {"prefix": prefix} if prefix else {}
        plain = [("", _("work first"), self.url(self.name, **kept))]
        return plain + [(name, str(label), self.url(self.name, sort=name)) for name, (label, _key) in SORTS.items()]

    def _page(
        self, organization: str, plan: str, prefix: str, sort: str
    ) -> tuple[ResultPage[str], QueueStats, Fairness]:
        queue, cursor = self.queue, self.request.GET.get("cursor") or None
        read = queue.organization(organization).members if organization else partial(queue.users_of_plan, plan)
        if sort and sort not in SORTS:
            raise NotHereError(_("Users can be sorted by %(sorts)s.") % {"sorts": ", ".join(SORTS)})
        if sort:
            return self._sort_users(sort, cursor)
        try:
            page = (
                _read_page(read, cursor)
                if organization or plan
                else queue.users(cursor, USERS_PER_PAGE, busy_first=True, prefix=prefix)
            )
        except TaskValidationError:
            if cursor is None:
                raise
            raise NotHereError(_("There is no such page of users: this is the first.")) from None
        return page, *self._figures(PAGE_USERS_EXAMINED, page.items)

    def _figures(self, limit: int, user_ids: Sequence[str] = ()) -> list[Any]:
        reads: list[Callable[[Shards], Operation[Any]]] = [
            queue_stats.stats,
            lambda shards: user_fairness.fairness(shards, limit, user_ids),
        ]
        return read_in_lockstep([(self.queue, read) for read in reads])

    def _sort_users(self, sort: str, cursor: str | None) -> tuple[ResultPage[str], QueueStats, Fairness]:
        """Sort the examined users, and return a page of them."""
        queue_figures, fairness = self._figures(PAGE_USERS_EXAMINED)
        begin = int(cursor) if cursor and cursor.isdecimal() and len(cursor) < 6 else 0
        ranked = sorted(fairness.examined, key=SORTS[sort][1], reverse=True)
        items = [user.user_id for user in ranked[begin : begin + USERS_PER_PAGE]]
        following = str(begin + USERS_PER_PAGE) if begin + USERS_PER_PAGE < len(ranked) else None
        return ResultPage(items, following, fairness.missing_shards), queue_figures, fairness

    def _one(self, user_id: str) -> dict[str, Any]:
        self.refreshes = False
        try:
            stats = self.queue.user(user_id).stats()
        except TaskValidationError as error:
            return {"problem": str(error)}
        queue_figures, fairness = self._figures(1, [user_id])
        (row,) = rows([stats], fairness)
        waits = next(user.lane_waits for user in fairness.examined if user.user_id == user_id)
        is_set = row.limits or stats.organization or stats.paused or stats.plan or stats.weight != 1
        is_known = bool(stats.sizes.total or stats.started or is_set)
        return {
            "row": row,
            "unstarted": count_unstarted(stats),
            "report_url": self.url("user_report", quote(user_id)),
            "lanes": row.lanes and [(lane, count, waits.get(lane)) for lane, count in row.lanes.items()],
            "is_recorded": is_known,
            **_queue_waits(queue_figures),
            "form": self.form or LimitsForm.from_stats(stats),
            "preview": self.url(self.name, user=user_id, preview="1"),
            **_describe_history(self.queue.user(user_id).history(days=1), queue_figures.deployments),
            **self._latest(user_id),
            "changes": self._changes(user_id),
        }

    def _latest(self, user_id: str) -> dict[str, Any]:
        """Return the user's latest ended tasks."""
        ended = self.queue.user(user_id).ended_tasks(ENDED_TASKS_EXAMINED)
        return {
            "latest": [
                (task, self.link("task", quote(task.task_id)), task.started_at and task.ended_at - task.started_at)
                for task in (ended.tasks[:LATEST_ROWS] if self.may("view_task") else ())
            ],
            "ended_examined": 0 if ended.is_whole else ended.examined,
        }

    def _changes(self, user_id: str) -> list[dict[str, Any]]:
        """Return the audit entries about this user, the latest first."""
        subject = user_id.replace("\0", "\N{SYMBOL FOR NULL}")[:MAX_SUBJECT_CHARACTERS]
        entries = read_entries().filter(queue=self.queue_name, kind="user", subject=subject)
        return [audit_row(entry) for entry in entries[:LATEST_ROWS]]

    @Action("change_user")
    def pause(self) -> str:
        self.ask_before_pause()
        pause = posted_pause(self.request.POST)
        self.queue.user(self.subject).pause(note=pause.note, until=pause.until)
        done = _("User %(user)s is paused: none of its tasks start; what runs goes on.")
        return with_details(done % {"user": self.subject}, pause)

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

    @Action("change_user")
    def plan(self) -> str:
        plan = self.request.POST.get("plan", "") or None
        self.queue.user(self.subject).set_plan(plan)
        if plan is None:
            return _("User %(user)s has its usual plan, and no other limits.") % {"user": self.subject}
        return _("User %(user)s has the plan %(plan)s.") % {"user": self.subject, "plan": plan}

    @Action("delete_user")
    def purge(self) -> str:
        user = self.queue.user(self.subject)

        def left() -> int:
            return count_unstarted(user.stats())

        if not left():
            text = _("User %(user)s has nothing waiting, so there is nothing to purge.")
            raise ValueError(text % {"user": self.subject})
        return self.purge_slice(user.purge, left, self._describe_purge, self._whether_to_purge)

    def _describe_purge(self, count: int) -> str:
        sentence = ngettext(
            "%(count)s task of user %(user)s was canceled.", "%(count)s tasks of user %(user)s were canceled.", count
        )
        return sentence % {"count": number(count), "user": self.subject}

    def _whether_to_purge(self, count: int, *before: str) -> Question:
        sentence = ngettext(
            "%(count)s task that user %(user)s has waiting will be canceled. It can't be brought back.",
            "All %(count)s tasks that user %(user)s has waiting will be canceled. They can't be brought back.",
            count,
        )
        text = [*before, sentence % {"count": number(count), "user": self.subject}, at_most(count)]
        yes, title = (_("Continue"), _("Go on?")) if before else (_("Cancel what waits"), "")
        return Question(text, yes, title)
