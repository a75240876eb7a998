"""What there is to tell of the model events of this project, for the command and the admin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import FairQueueError
from django_fairque.engine.model.options import InvalidOptionsError
from django_fairque.engine.model.records import EventCount

from . import rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from django_fairque.engine.queue.queue import FairQueue

    from .rules import Rule


@dataclass(frozen=True)
class EventFacts:
    """One declared event. ``queue`` is empty for one that is switched off, ``model`` None for a signal of no model."""

    name: str
    kinds: tuple[str, ...]
    model: str | None
    condition: str
    task: str
    queue: str
    count: EventCount
    problems: tuple[str, ...]


@dataclass(frozen=True)
class EventsOverview:
    """All events in the order of their declaration, and why a queue's counts are not known."""

    events: tuple[EventFacts, ...]
    unreachable: Mapping[str, str]


def overview(queue_of: Callable[[str], FairQueue]) -> EventsOverview:
    """Ask each queue once; one that does not answer leaves its events without counts."""
    declared = rules.rules()
    counts, unreachable = _counts(declared, queue_of)
    return EventsOverview(tuple(_facts(rule, counts.get(rule.name, EventCount())) for rule in declared), unreachable)


def _counts(
    declared: Sequence[Rule], queue_of: Callable[[str], FairQueue]
) -> tuple[dict[str, EventCount], dict[str, str]]:
    found: dict[str, EventCount] = {}
    unreachable: dict[str, str] = {}
    for queue in sorted({_queue(rule) for rule in declared if rule.is_on}):
        counts, error = _counts_of(queue, queue_of)
        found.update(counts)
        if error:
            unreachable[queue] = error
    return found, unreachable


def _counts_of(name: str, queue_of: Callable[[str], FairQueue]) -> tuple[dict[str, EventCount], str]:
    try:
        return queue_of(name).event_counts(), ""
    except InvalidOptionsError:
        raise  # of the project, not of this queue
    except FairQueueError as error:
        return {}, str(error)


def _queue(rule: Rule) -> str:
    return rule.definition.options.queue


def _facts(rule: Rule, count: EventCount) -> EventFacts:
    return EventFacts(
        name=rule.name,
        kinds=tuple(sorted(rule.kinds)),
        model=rule.model._meta.label if rule.model is not None else None,
        condition="" if rule.when is None else repr(rule.when),
        task=rule.task_name,
        queue=_queue(rule) if rule.is_on else "",
        count=count,
        problems=tuple(rule.problems),
    )
