"""What each plan gets, and what a customer sees who orders more."""

from __future__ import annotations

from dataclasses import dataclass

from django_fairque import BacklogFullError, TaskResult, get_queue

from .tasks import export


@dataclass(frozen=True)
class Plan:
    """A plan's share of the workers and its limits; None is no limit."""

    weight: float
    """Its share while others have work too: 3 is three times that of 1."""
    running: int | None
    """How many exports of a customer run at once."""
    backlog: int
    """How many exports of a customer wait at most."""


PLANS = {
    "free": Plan(weight=1, running=2, backlog=100),
    "pro": Plan(weight=3, running=None, backlog=10_000),
}


def apply_plan(customer: str, name: str) -> None:
    """Give a customer the share and the limits of a plan; call it when the plan changes. It also acts on waiting exports."""
    plan, user = PLANS[name], get_queue().user(customer)
    user.set_weight(plan.weight)
    user.set_max_running(plan.running)
    user.set_max_backlog(plan.backlog)


@dataclass(frozen=True)
class Order:
    """What became of an order: the exports that were accepted, and how many were not."""

    accepted: list[TaskResult[str]]
    refused: int

    @property
    def answer(self) -> str:
        """What the customer sees."""
        if self.refused:
            return f"{self.refused} exports were not accepted: your plan allows fewer that wait. Order them later, or upgrade."
        return "Your exports have begun."


def order_exports(customer: str, count: int) -> Order:
    """Order a number of reports, as many as the customer's plan lets wait."""
    try:
        return Order(export.enqueue_many([((customer, number), {}) for number in range(count)]), 0)
    except BacklogFullError as error:
        refused = set(error.refused)
        accepted = [result.task_id for result in error.results if result.task_id not in refused]
        return Order([TaskResult(task_id) for task_id in accepted], len(refused))
