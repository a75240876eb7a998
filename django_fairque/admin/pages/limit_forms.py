"""The forms of what holds for one user, and for an organization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.translation import gettext_lazy as _

from django_fairque.admin.pages.base import InvalidForm, accepted
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.ids import MAX_ID_BYTES, check_id
from django_fairque.engine.users.users import MAX_LIMIT_VALUES, UserQueue, UserStats, parse_rate

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise
    from typing_extensions import Self

    from django_fairque.engine.users.organizations import OrganizationStats


def _weight(help_text: StrOrPromise) -> forms.FloatField:
    return forms.FloatField(label=_("Weight"), min_value=0.001, max_value=1000, help_text=help_text)


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
    weight = _weight(_("2 is twice the share of a user of weight 1, for all members together"))
    max_running = _limit("max_running", _("Running at once"), _("tasks of all members together; empty for no limit"))


class LimitsForm(SettingsForm):
    """Empty: no limit, or the queue's own."""

    weight = _weight(_("2 is twice the share of a user of weight 1"))
    organization = forms.CharField(
        label=_("Organization"),
        required=False,
        max_length=MAX_ID_BYTES,
        strip=False,
        help_text=_("its members share what one user would get; empty for none"),
    )
    max_running = _limit("max_running", _("Running at once"))
    rate = forms.CharField(
        label=_("Rate"), required=False, max_length=40, help_text=_("starts per unit of time, such as 100/m or 5/10s")
    )
    burst = _limit("burst", _("Burst"), _("with a rate: how many may start at once; 1 if empty"))
    max_backlog = _limit("max_backlog", _("Backlog"), _("waiting tasks beyond which more are refused"))
    sla = forms.FloatField(label=_("SLA"), required=False, help_text=_("seconds; empty for each priority's own"))

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
