"""The sources of the configuration: Django's settings, a YAML file, the environment, and overrides.

Later sources win: defaults, ``settings.FAIRQUE``, the file it names, the environment, overrides (the command line).

The environment variable ``FAIRQUE_REDIS__URL`` is ``redis.url``: two underscores separate the levels. A name without them
is read only if it is a whole key by itself, because other variables begin alike: Kubernetes sets ``FAIRQUE_REDIS_PORT`` for
a service called fairque-redis.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_fairque.conf.layers import SCALARS, Entry, Layer, merge_layers
from django_fairque.conf.redis import ADDRESSES
from django_fairque.conf.sections import SECTIONS
from django_fairque.engine.model.options import Mistake, shown

if TYPE_CHECKING:
    import yaml


WATCHED_SETTINGS = ("FAIRQUE", "CACHES", "DEBUG", "BASE_DIR", "DJANGO_REDIS_CONNECTION_FACTORY")
"""The settings on which the configuration depends."""

# A mistake at one of these paths may hide the server's address, so its absence is not reported as well.
_MAY_NAME_A_SERVER = ((), ("redis",), ("config_file",))

_NO_SERVER = (
    'no server is named; expected for example {"URL": "redis://127.0.0.1:6379/0"} here, or the environment variable '
    "FAIRQUE_REDIS__URL. The development server is used unasked only while DEBUG is true; "
    '{"URL": "embedded://"} asks for it (in tests, where DEBUG is false, for example)'
)


NO_SERVER_URL = "unix:///no-server-is-named-and-this-test-captures-its-tasks"
"""Used instead of a server when none is needed. A call that connects all the same shows it in its error."""


def written_entries() -> dict[tuple[str, ...], Entry]:
    """All options that the sources give now, with their keys as they are written there."""
    return merge_layers(all_layers(()))


def obsolete_keys() -> dict[str, str]:
    """The keys in the sources that have no effect, as they are written there, each with what replaced it."""
    return {key: replacement for layer in all_layers(()) for key, replacement in layer.obsolete.items()}


def all_layers(overrides: Iterable[Mapping[str, Any]]) -> list[Layer]:
    layers = [settings_layer(), environment_layer(os.environ), *map(overrides_layer, overrides)]
    named = [entry for layer in layers if (entry := layer.entries.pop(("config_file",), None))]
    if named and named[-1].value is not None:
        layers.insert(1, file_layer(named[-1].value, named[-1].key))
    return layers


def settings_layer() -> Layer:
    from django.conf import settings  # importable before Django is set up

    layer = Layer()
    value = getattr(settings, "FAIRQUE", None)
    layer.add((), value, (), lambda written: "settings.FAIRQUE" + "".join(f'["{name}"]' for name in written))
    return layer


def overrides_layer(overrides: Mapping[str, Any]) -> Layer:
    """What was given for this process; None means that it was not given, as it does for a command's options."""
    layer = Layer()
    layer.add((), overrides, (), lambda written: f"override {'.'.join(written)}")
    layer.entries = {path: entry for path, entry in layer.entries.items() if entry.value is not None}
    return layer


def default_server_layer(layers: list[Layer], *, needs_server: bool) -> Layer:
    """The embedded server if no source names one and this is development, else the mistake that none is named."""
    layer = Layer()
    keys = {path[1] for each in layers for path in each.entries if path[:1] == ("redis",) and len(path) > 1}
    if keys & {*ADDRESSES, "port"} or any(
        mistake.path[:1] in _MAY_NAME_A_SERVER for each in layers for mistake in each.mistakes
    ):
        return layer
    from django.conf import settings

    key = 'settings.FAIRQUE["REDIS"]["URL"]'
    if settings.DEBUG:
        layer.entries["redis", "url"] = Entry("embedded://", f"{key} (default)", is_upper=True)
    elif not needs_server:
        layer.entries["redis", "url"] = Entry(NO_SERVER_URL, f"{key} (none)", is_upper=True)
    else:
        layer.mistakes.append(Mistake("server", ("redis",), _NO_SERVER, key='settings.FAIRQUE["REDIS"]'))
    return layer


VARIABLE_PREFIX = "FAIRQUE_"
LEVEL_SEPARATOR = "__"
SIMILARITY_CUTOFF = 0.8
"""How much a variable must be like an option to be called a mistake: others may begin alike."""

_KEYS_WITHOUT_LEVEL = ("redis", *SCALARS)


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
        for section, options in SECTIONS.items()
        for option in options.option_names()
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
    if not name.startswith(VARIABLE_PREFIX):
        return ("",)
    return tuple(name.removeprefix(VARIABLE_PREFIX).lower().split(LEVEL_SEPARATOR))


def file_layer(path: object, named_by: str = "") -> Layer:
    """What the file says; that it can't be read is a mistake of the layer. ``named_by`` is the key that names it."""
    layer = Layer()
    tree, problem = _read_file(path)
    if problem:
        text = f"expected the path of a YAML file; {problem}"
        layer.mistakes.append(Mistake("file", ("config_file",), text, key=named_by or str(path)))
        return layer
    layer.add((), tree, (), lambda written: f"{'.'.join(written)} in {path}" if written else str(path))
    entry = layer.entries.pop(("config_file",), None)
    if entry:
        layer.mistakes.append(Mistake("unknown", ("config_file",), "a file can't name another one", key=entry.key))
    return layer


def _read_file(path: object) -> tuple[Any, str]:
    """The content of the file, and why it can't be read, or an empty string."""
    import yaml  # costs 10 ms, and few configurations have a file

    if not isinstance(path, (str, os.PathLike)):
        return None, f"got {shown(path)}"
    try:
        text = Path(path).read_text(encoding="utf-8")
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, ""
            if not (duplicates := list(_duplicate_keys(node))):
                return loader.construct_document(node), ""
        finally:
            loader.dispose()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{path} can't be read: {getattr(error, 'strerror', None) or error}"
    except yaml.YAMLError as error:
        # The error's own text quotes the lines around it, which may contain a password.
        mark, what = getattr(error, "problem_mark", None), getattr(error, "problem", None) or "not YAML"
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = f"{path} is not one: {what}{where}"
    except RecursionError:
        problem = f"{path} is nested too deeply"
    except ValueError:  # of a date that does not exist, or of a number with thousands of digits
        problem = f"{path} holds a date or a number that does not exist"
    else:
        problem = f"{path} has a key more than once: {'; '.join(duplicates)}"
    return None, problem


def _duplicate_keys(root: yaml.Node) -> Iterator[str]:
    """Find keys that a mapping has twice: YAML would silently take the last one."""
    import yaml

    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            lines: dict[str, list[int]] = {}
            for key, value in node.value:
                waiting += (key, value)
                if isinstance(key, yaml.ScalarNode):
                    lines.setdefault(key.value, []).append(key.start_mark.line + 1)
            for name, found in lines.items():
                if len(found) > 1:
                    yield f"{shown(name)} in lines {', '.join(map(str, found[:-1]))} and {found[-1]}"
