"""Each kind of task once."""

from __future__ import annotations

from django_fairque import BatchResult, Priority, Retry, current_task, task


@task(user="customer", priority=Priority.HIGH, max_retries=2)
def bake(customer: str, loaves: int) -> dict[str, int]:
    if current_task().retries_left and loaves > 100:
        raise Retry(1, "the oven is small")
    current_task().progress(loaves, loaves, "baked")
    return {"loaves": loaves}


@task(user="customer", timeout=30)
async def cool(customer: str, minutes: float) -> float:
    return minutes


@task(batch=10, batch_wait=0.05)
def deliver(items: list[int]) -> BatchResult:
    result = BatchResult(items)
    for position, item in enumerate(items):
        result.ok(position, item)
    return result


@task(user="customer", max_retries=0)
def burn(customer: str) -> None:
    raise ValueError("the oven is too hot")
