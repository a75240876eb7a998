"""The rules of this process: which are declared, which are switched on, and which concern a model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django_fairque.tasks import registry as tasks

from . import seen
from .checking import problems_of
from .classes import classes_of, is_historical, model_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import Model

    from .event import Event
    from .rules import Rule

logger = logging.getLogger("django_fairque.events")


class _State:
    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.is_ready = False
        """Models are there, and rules are switched on as they come."""
        self.of_class: dict[type[Model], tuple[Rule, ...]] = {}


_state = _State()


def rules() -> Sequence[Rule]:
    """All that are declared, in that order."""
    return tuple(_state.rules)


def add(rule: Rule) -> None:
    """Declare a rule; from then on it is switched on, or as soon as the models are there."""
    same = sum(each.name == rule.name or each.name.startswith(f"{rule.name}#") for each in _state.rules)
    if same:
        rule.name = f"{rule.name}#{same + 1}"
    _state.rules.append(rule)
    if _state.is_ready:
        switch_on(rule)


def ready() -> None:
    """The models are there: switch on what was declared so far. Called when Django is set up."""
    _state.is_ready = True
    tasks.on_register(_task_is_here)
    for rule in _state.rules:
        switch_on(rule)


def _task_is_here(name: str) -> None:
    """Switch on what waits for this task: an app behind this one in `INSTALLED_APPS` may import it in its own `ready`."""
    for rule in _state.rules if _state.is_ready else ():
        if rule.task == name and not rule.is_on:
            switch_on(rule)
            if rule.is_on:
                logger.info("the model event %s is switched on: its task is registered now", rule.name)


def switch_on(rule: Rule) -> None:
    """Connect a rule to its model's signals; one with mistakes stays off, which is logged and a check's error."""
    from . import receivers

    if rule.is_on:
        return
    rule.problems = []
    try:
        rule.model = None if rule.target is None else model_of(rule.target)
    except LookupError as error:
        rule.problems.append(str(error))
    else:
        rule.problems += problems_of(rule)
    if rule.problems:
        logger.error("the model event %s is switched off: %s", rule.name, "; ".join(rule.problems))
        return
    rule.is_on = True
    _state.of_class.clear()
    if rule.model is not None:
        _track(rule)
    receivers.connect(rule)


def _track(rule: Rule) -> None:
    assert rule.model is not None  # noqa: S101 - the caller looked
    names = set() if rule.when is None else set(rule.when.tracked())
    if not names:
        return
    from .paths import field_of

    for model in classes_of(rule.model):
        columns = {field_of(model, name).attname for name in names}
        seen.tracked[model] = tuple(sorted(columns.union(seen.tracked.get(model, ()))))
        seen.watch_refreshes(model)


def of_model(model: type[Model]) -> tuple[Rule, ...]:
    """The rules that are on and concern objects of this class; also of the class as a migration has it."""
    found = _state.of_class.get(model)
    if found is None:
        is_old = is_historical(model)
        found = tuple(
            rule
            for rule in _state.rules
            if rule.is_on
            and rule.model is not None
            and (issubclass(model, rule.model) or (is_old and model._meta.label == rule.model._meta.label))
        )
        if not is_old:  # migrations make such classes by the hundred
            _state.of_class[model] = found
    return found


def fire(model: type[Model], event: Event) -> None:
    for rule in of_model(model):
        if event.kind in rule.kinds:
            rule.fire(event)
