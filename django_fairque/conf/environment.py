"""Environment variables: ``FAIRQUE_REDIS__URL`` is ``redis.url``.

Two underscores part the levels. A name without them is taken only if it is a whole key by itself, because other
variables begin alike: Kubernetes sets ``FAIRQUE_REDIS_PORT`` for a service called fairque-redis.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from django_fairque.engine.model.options import Options, QueueConfig

from .layers import SCALARS, Layer
from .monitor import MonitorConfig
from .redis import RedisConfig
from .worker import WorkerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE_PREFIX = "FAIRQUE_"
LEVEL_SEPARATOR = "__"
SIMILARITY_CUTOFF = 0.8
"""How much a variable must be like an option to be called a mistake: others may begin alike."""

_KEYS_WITHOUT_LEVEL = ("redis", *SCALARS)
_SECTION_OPTIONS: dict[str, type[Options]] = {
    "redis": RedisConfig,
    "worker": WorkerConfig,
    "queue": QueueConfig,
    "monitor": MonitorConfig,
}


def environment_layer(environ: Mapping[str, str]) -> Layer:
    layer = Layer()
    for name, value in sorted(environ.items()):
        path = _variable_path(name)
        if len(path) > 1 or path[0] in _KEYS_WITHOUT_LEVEL:
            layer.add(path, value, (name,), lambda written: f"environment variable {written[0]}")
    return layer


def find_misspelled_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that are not read, each with the one that was probably meant."""
    meant = {
        f"{section}_{option}": f"{VARIABLE_PREFIX}{section}{LEVEL_SEPARATOR}{option}".upper()
        for section, options in _SECTION_OPTIONS.items()
        for option in options.setting_names()
    }
    for name, value in sorted(environ.items()):
        path = _variable_path(name)
        if len(path) > 1 or path[0] in _KEYS_WITHOUT_LEVEL or value.startswith("tcp://"):  # the form of Kubernetes' own
            continue
        if path[0] in meant:
            yield name, meant[path[0]]
        for near in get_close_matches(path[0], SCALARS, n=1, cutoff=SIMILARITY_CUTOFF):
            yield name, f"{VARIABLE_PREFIX}{near}".upper()


def _variable_path(name: str) -> tuple[str, ...]:
    return (
        tuple(name[len(VARIABLE_PREFIX) :].lower().split(LEVEL_SEPARATOR))
        if name.startswith(VARIABLE_PREFIX)
        else ("",)
    )
