"""Where the configuration comes from: the only module that reads Django's settings.

Later wins: defaults, ``settings.FAIRQUE``, the file it names, the environment, overrides (the command line).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.model.options import InvalidOptionsError, Mistake

from .assembly import assemble
from .environment import environment_layer
from .files import file_layer
from .layers import Entry, Layer, merge_layers
from .models import FairQueueConfig
from .redis import ADDRESSES, RedisConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

AnyConfig = TypeVar("AnyConfig", bound=FairQueueConfig)

WATCHED_SETTINGS = ("FAIRQUE", "CACHES", "DEBUG", "BASE_DIR", "DJANGO_REDIS_CONNECTION_FACTORY")
"""The settings on which the configuration depends."""

# Where there is a mistake here, the server may just not have been found.
_MAY_NAME_A_SERVER = ((), ("redis",), ("config_file",))

_NO_SERVER = (
    'no server is named; expected for example {"URL": "redis://127.0.0.1:6379/0"} here, or the environment variable '
    "FAIRQUE_REDIS__URL. The development server is used unasked only while DEBUG is true; "
    '{"URL": "embedded://"} asks for it (in tests, where DEBUG is false, for example)'
)


NO_SERVER_URL = "unix:///no-server-is-named-and-this-test-captures-its-tasks"
"""In place of a server that nobody needs; whoever asks it all the same reads this in the error."""


def load(kind: type[AnyConfig], *overrides: Mapping[str, Any], needs_server: bool = True) -> AnyConfig:
    """All sources together, as they are now; of several overrides the last wins.

    Args:
        needs_server: whether it is a mistake to name no server when this is not development.

    Raises:
        ConfigurationError: every mistake in them.
    """
    layers = _layers(overrides)
    return assemble(kind, [_default_server(layers, needs_server=needs_server), *layers], _check_cache)


def written_entries() -> dict[tuple[str, ...], Entry]:
    """All options that the sources give now, with their keys as they are written there."""
    return merge_layers(_layers(()))


def obsolete_keys() -> dict[str, str]:
    """The keys in the sources that have no effect, as they are written there, each with what replaced it."""
    return {key: replacement for layer in _layers(()) for key, replacement in layer.obsolete.items()}


def _layers(overrides: Iterable[Mapping[str, Any]]) -> list[Layer]:
    layers = [settings_layer(), environment_layer(os.environ), *map(overrides_layer, overrides)]
    named = [entry for layer in layers if (entry := layer.entries.pop(("config_file",), None))]
    if named and named[-1].value is not None:
        layers.insert(1, file_layer(named[-1].value, named[-1].key))
    return layers


def settings_layer() -> Layer:
    from django.conf import settings  # importable before Django is set up

    layer = Layer()
    layer.add((), getattr(settings, "FAIRQUE", None), (), _settings_label)
    return layer


def _settings_label(written: tuple[str, ...]) -> str:
    return "settings.FAIRQUE" + "".join(f'["{name}"]' for name in written)


def overrides_layer(overrides: Mapping[str, Any]) -> Layer:
    """What was given for this process; None means that it was not given, as it does for a command's options."""
    layer = Layer()
    layer.add((), overrides, (), lambda written: f"override {'.'.join(written)}")
    layer.entries = {path: entry for path, entry in layer.entries.items() if entry.value is not None}
    return layer


def _default_server(layers: list[Layer], *, needs_server: bool) -> Layer:
    """The embedded server if no source names one and this is development, else the mistake that none is named."""
    layer = Layer()
    keys = {path[1] for each in layers for path in each.entries if path[:1] == ("redis",) and len(path) > 1}
    if keys & {*ADDRESSES, "port"} or any(
        mistake.path[:1] in _MAY_NAME_A_SERVER for each in layers for mistake in each.mistakes
    ):
        return layer
    from django.conf import settings

    if settings.DEBUG:
        layer.entries["redis", "url"] = Entry(
            "embedded://", 'settings.FAIRQUE["REDIS"]["URL"] (default)', is_upper=True
        )
    elif not needs_server:
        layer.entries["redis", "url"] = Entry(NO_SERVER_URL, 'settings.FAIRQUE["REDIS"]["URL"] (none)', is_upper=True)
    else:
        layer.mistakes.append(Mistake("server", ("redis",), _NO_SERVER, key='settings.FAIRQUE["REDIS"]'))
    return layer


def _check_cache(config: FairQueueConfig) -> None:
    if config.redis.cache:
        try:
            resolve_cache(config.redis)
        except InvalidOptionsError as error:
            raise InvalidOptionsError(
                replace(mistake, path=("redis", *mistake.path)) for mistake in error.mistakes
            ) from None


def resolve_cache(config: RedisConfig) -> RedisConfig:
    """The configuration with its cache alias replaced by the server it stands for."""
    from django.conf import settings

    from .caches import resolve  # only who names a cache needs it

    return resolve(config, settings.CACHES, getattr(settings, "DJANGO_REDIS_CONNECTION_FACTORY", None))


def embedded_directory(url: str) -> Path:
    """The directory of the server that an ``embedded://`` URL names, by default ``.fairque`` in ``BASE_DIR``."""
    from django_fairque.embedded import directory_from_url  # it needs redis-py

    return directory_from_url(url, _base_directory())


def _base_directory() -> Path:
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    try:
        return Path(getattr(settings, "BASE_DIR", None) or Path.cwd())
    except ImproperlyConfigured:  # a script without Django's settings
        return Path.cwd()
