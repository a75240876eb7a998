"""Questions of customers to the model. A coroutine waits for each answer, so that one process has many requests under way."""

from __future__ import annotations

from django_fairque import Retry, task

from .model import ModelBusyError, ModelFailedError, complete


@task(
    user="customer",
    timeout=30,  # seconds; a model that does not answer fails the attempt
    max_retries=4,
    retry_on=(ModelFailedError, OSError, TimeoutError),  # a refused question is a dead letter at once
    backoff={"base": 0.2, "cap": 10},
)
async def ask(customer: str, question: str) -> str:
    """Return the model's answer to a customer's question."""
    try:
        return await complete(question)
    except ModelBusyError as busy:
        raise Retry(busy.retry_after, reason=str(busy)) from None  # not the task's fault: it costs none of its retries
