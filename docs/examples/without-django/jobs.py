"""The jobs: functions that the consumer runs."""

from __future__ import annotations

from collections import Counter

from django_fairque import task


@task(name="count_words", user="customer")
def count_words(customer: str, text: str) -> dict[str, int]:
    """Count the words of a customer's text."""
    return dict(Counter(text.lower().split()))
