"""What is wrong with a rule: fields that its model does not have, tasks that nobody has registered, queues that are not
declared, calls that don't fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import FairQueueError
from django_fairque.tasks.options import TaskOptions
from django_fairque.tasks.queues import get_config

from .event import M2M
from .paths import problem_of
from .relation import relations_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import Model

    from .rules import Rule


def problems_of(rule: Rule) -> list[str]:
    """Each as a sentence; empty when the rule can be switched on."""
    return [*_task_problems(rule), *(_model_problems(rule, rule.model) if rule.model is not None else ())]


def _task_problems(rule: Rule) -> Iterator[str]:
    try:
        definition = rule.definition
        if rule.bind is None:
            definition.caller.bind([None] * len(rule.args), dict.fromkeys(rule.kwargs))
        _check_queue(definition.options.queue)
    except FairQueueError as error:
        yield str(error)


def _check_queue(name: str) -> None:
    if name == TaskOptions.queue:
        return  # it is always declared, and events of it alone cost a process that starts no look at the configuration
    from django_fairque.engine.model.options import InvalidOptionsError

    try:
        get_config().queue_config(name)
    except InvalidOptionsError:
        return  # which queues there are nobody knows, and another check tells of it


def _model_problems(rule: Rule, model: type[Model]) -> Iterator[str]:
    if rule.when is not None:
        yield from rule.when.problems(model)
    for what, given in (
        *(("user", each) for each in [rule.user]),
        *((f"argument {number}", each) for number, each in enumerate(rule.args, 1)),
        *((f"argument {name!r}", each) for name, each in rule.kwargs.items()),
    ):
        if isinstance(given, str) and (problem := problem_of(model, given)):
            yield f"{what}: {problem}"
    if M2M in rule.kinds:
        fields = {each.name: each for each in model._meta.many_to_many}
        field = fields.get(rule.relation)
        if field is None:
            names = ", ".join(fields) or "none"
            yield f"{model._meta.label} declares no many-to-many field {rule.relation!r}; it has {names}"
        elif rule.actions == {"clear"} and any(each.has_own_rows for each in relations_of(model, rule.relation)):
            yield f"a clear of {rule.relation!r} is a 'remove' of each row, because its through model is one of your own"
