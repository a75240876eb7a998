"""Messages whose hints end with the place that explains them, and the configuration that most checks look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core import checks

if TYPE_CHECKING:
    from django_fairque.conf import FairQueueConfig, RedisConfig

PAGE = "docs/checks.md"


def message(number: str, text: str, hint: str) -> checks.CheckMessage:
    """An error (E) or a warning (W); its number has the letter."""
    kind = checks.Error if ".E" in number else checks.Warning
    return kind(text, hint=f"{hint} See {PAGE}#{number.rpartition('.')[2].lower()}", id=number)


def configured() -> FairQueueConfig | None:
    """The configuration; None when it has mistakes, which `check_configuration` reports."""
    from django_fairque.conf import get_config
    from django_fairque.engine.model.errors import ConfigurationError

    try:
        return get_config()
    except ConfigurationError:
        return None


def resolved(redis: RedisConfig) -> RedisConfig:
    """With its cache alias, if it has one, replaced by the server that is meant."""
    from django_fairque.conf.redis import resolve_cache

    return resolve_cache(redis)
