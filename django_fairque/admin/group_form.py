"""The form of what holds for a group of users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django import forms
from django.utils.translation import gettext_lazy as _

from django_fairque.engine.users import LIMITS

if TYPE_CHECKING:
    from django_fairque.engine.groups import GroupStats


class GroupForm(forms.Form):
    weight = forms.FloatField(
        label=_("Weight"),
        min_value=0.001,
        max_value=1000,
        help_text=_("2 is twice the share of a user of weight 1, for all members together"),
    )
    max_running = forms.IntegerField(
        label=_("Running at once"),
        required=False,
        min_value=1,
        max_value=LIMITS["max_running"],
        help_text=_("tasks of all members together; empty for no limit"),
    )

    @classmethod
    def of(cls, stats: GroupStats) -> GroupForm:
        """What holds now."""
        return cls(initial={name: getattr(stats, name) for name in cls.base_fields})
