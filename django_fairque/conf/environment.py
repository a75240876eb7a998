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

PREFIX = "FAIRQUE_"
LEVEL = "__"
ALIKE = 0.8
"""How much a variable must be like an option to be called a mistake: others may begin alike."""

_WHOLE = ("redis", *SCALARS)
_SECTIONS: dict[str, type[Options]] = {
    "redis": RedisConfig,
    "worker": WorkerConfig,
    "queue": QueueConfig,
    "monitor": MonitorConfig,
}


def environment_layer(environ: Mapping[str, str]) -> Layer:
    layer = Layer()
    for name, value in sorted(environ.items()):
        path = _path(name)
        if len(path) > 1 or path[0] in _WHOLE:
            layer.add(path, value, (name,), lambda written: f"environment variable {written[0]}")
    return layer


def overlooked(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that are not read, each with the one that was probably meant."""
    meant = {
        f"{section}_{option}": f"{PREFIX}{section}{LEVEL}{option}".upper()
        for section, options in _SECTIONS.items()
        for option in options.setting_names()
    }
    for name, value in sorted(environ.items()):
        path = _path(name)
        if len(path) > 1 or path[0] in _WHOLE or value.startswith("tcp://"):  # the form of Kubernetes' own
            continue
        if path[0] in meant:
            yield name, meant[path[0]]
        for near in get_close_matches(path[0], SCALARS, n=1, cutoff=ALIKE):
            yield name, f"{PREFIX}{near}".upper()


def _path(name: str) -> tuple[str, ...]:
    return tuple(name[len(PREFIX) :].lower().split(LEVEL)) if name.startswith(PREFIX) else ("",)
