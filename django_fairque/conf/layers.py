"""The sources of the configuration (Django's settings, a YAML file, the environment, overrides) as layers of entries.

An entry keeps its key in the user's spelling, so that a mistake is reported with that key.

Later sources win: defaults, ``settings.FAIRQUE``, the file that it names, the environment, overrides (the command
line).

The environment variable ``FAIRQUE_REDIS__URL`` is ``redis.url``: two underscores separate the levels. A name without
two underscores is read only if the whole name is a key, because other variables begin alike: Kubernetes sets
``FAIRQUE_REDIS_PORT`` for a service called fairque-redis.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.conf import urls
from django_fairque.conf.redis import ADDRESSES, PARTS_OF_URL, RedisConfig
from django_fairque.conf.sections import SECTIONS, TopLevelOptions, WorkerConfig
from django_fairque.engine.model.options import (
    InvalidOptionsError,
    Mistake,
    Options,
    QueueConfig,
    show,
    unknown,
    warn_of_obsolete,
)

if TYPE_CHECKING:
    import yaml

KeyPath = tuple[str, ...]

SECTION_NAMES = ("redis", "worker", "workers", "queue", "queues", "schedules", "monitor")
SCALARS = (*TopLevelOptions.model_fields, "config_file")

ABOUT_SERVER = {*ADDRESSES, *PARTS_OF_URL, "cluster"}

# The paths of mappings in the configuration, with their options; "*" stands for a name that the user chose. All other paths
# contain values.
_NESTING: dict[KeyPath, type[Options] | None] = {
    (): None,
    **{(name,): SECTIONS.get(name) for name in SECTION_NAMES},
    ("workers", "*"): WorkerConfig,
    ("queues", "*"): QueueConfig,
    **dict.fromkeys((("schedules", "*"), ("redis", "sentinel"), ("monitor", "limits"), ("monitor", "webhook"))),
    **{(*queue, option): None for queue in (("queue",), ("queues", "*")) for option in ("sla", "starvation")},
}


@dataclass(frozen=True)
class Entry:
    """A value and its key in the user's spelling. ``is_upper``: the key is in capitals, and a suggestion should be, too."""

    value: Any
    key: str
    is_upper: bool


@dataclass
class Layer:
    """The options from one source."""

    entries: dict[KeyPath, Entry] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    obsolete: dict[str, str] = field(default_factory=dict)
    """Keys that have no effect, in the user's spelling, each with its replacement."""

    def add(self, path: KeyPath, value: Any, written: KeyPath, label: Callable[[KeyPath], str]) -> None:
        """Add a value and the values nested in it. ``written`` is ``path`` in the user's spelling."""
        if value is None and path[:1] == ("redis",) and len(path) > 1:
            return  # a result of os.environ.get() for a missing variable
        key = label(written)
        kind = _NESTING.get(_pattern(path[:-1]))
        if kind and path[-1] in kind.obsolete:
            self.obsolete[key] = kind.obsolete[path[-1]]
            return
        if kind:  # stored under the current name, so that later sources can use either name
            path = (*path[:-1], kind.renamed.get(path[-1], path[-1]))
        if path == ("redis",) and isinstance(value, str):
            path = ("redis", "url")
        if path == ("workers",) and isinstance(value, (list, tuple)):
            value = self._by_id(value, key)
        if nests(path):
            value = {} if value is None else value
            if not isinstance(value, Mapping):
                is_secret = path[:1] == ("redis",) or path == ("monitor", "webhook")
                came = "a value that is not shown" if is_secret else show(value)
                self.mistakes.append(Mistake("value", path, f"expected a mapping; got {came}", key=key))
                return
            chosen_by_user = (*path, "*") in _NESTING
            for name, inner in ((str(name), inner) for name, inner in value.items()):
                self.add((*path, name if chosen_by_user else name.lower()), inner, (*written, name), label)
        elif path in self.entries:
            text = f"expected once; got it also as {self.entries[path].key}"
            self.mistakes.append(Mistake("conflict", path, text, key=key))
        self.entries[path] = Entry(value, key, is_upper=bool(written) and written[-1].isupper())

    def _by_id(self, workers: Iterable[Any], key: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for worker in workers:
            options = (
                {str(name).lower(): value for name, value in worker.items()} if isinstance(worker, Mapping) else {}
            )
            name = options.pop("id", None)
            if name is None or str(name) in found:
                text = "expected a list of mappings, each with an id of its own"
                self.mistakes.append(Mistake("value", ("workers",), f"{text}; got {show(name or worker)}", key=key))
            else:
                found[str(name)] = options
        return found

    def unfold_url(self) -> None:
        """Make entries of the options in the URL, so that a later source can override each of them."""
        entry = self.entries.get(("redis", "url"))
        url = entry and urls.join_urls(entry.value)
        if entry is None or not isinstance(url, str):
            return
        for name, value in urls.split_url(url)[1].items():
            if name in RedisConfig.model_fields:
                self.entries.setdefault(("redis", name), Entry(value, entry.key, entry.is_upper))


def nests(path: KeyPath) -> bool:
    return _pattern(path) in _NESTING


def _pattern(path: KeyPath) -> KeyPath:
    """Replace the name that the user chose in the path by "*", unless `_NESTING` has the path itself."""
    return path if path in _NESTING else (*path[:1], "*", *path[2:])


def merge_layers(layers: Iterable[Layer]) -> dict[KeyPath, Entry]:
    """Return the entries of all layers. If several layers have an entry for a key, the last layer wins."""
    entries: dict[KeyPath, Entry] = {}
    for layer in layers:
        if _names_another_server(layer.entries, entries):
            entries = {path: entry for path, entry in entries.items() if not _is_about_server(path)}
        entries.update(layer.entries)
    return entries


def _names_another_server(later: Mapping[KeyPath, Entry], earlier: Mapping[KeyPath, Entry]) -> bool:
    """Return whether ``later`` names a different server, instead of changing a part of the server that ``earlier`` names."""
    named, before = (
        {path[1] for path in entries if _is_about_server(path)} & {*ADDRESSES} for entries in (later, earlier)
    )
    is_part = named in ({"host"}, {"sentinel"}) and before <= named
    return bool(named) and not is_part


def _is_about_server(path: KeyPath) -> bool:
    """Return whether the option names the server, its user or its encryption. Credentials for one server are never sent
    to another."""
    return path[:1] == ("redis",) and (*path, "")[1] in ABOUT_SERVER


def nest_entries(entries: Mapping[KeyPath, Entry]) -> dict[str, Any]:
    """Return the entries as a tree of plain values."""
    tree: dict[str, Any] = {}
    for path, entry in entries.items():
        if nests(path):
            _descend(tree, path)
        else:
            _descend(tree, path[:-1])[path[-1]] = entry.value
    return tree


def _descend(tree: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    for name in path:
        tree = tree.setdefault(name, {})
    return tree


AnyOptions = TypeVar("AnyOptions", bound=Options)


def assemble(
    kind: type[AnyOptions], layers: Sequence[Layer], verify: Callable[[AnyOptions], None] | None = None
) -> AnyOptions:
    """Make a configuration from layers and check it. Later layers win.

    ``verify`` may compare the configuration with its surroundings; it raises `InvalidOptionsError` as sections do.
    """
    for layer in layers:
        layer.unfold_url()
        for key, replacement in layer.obsolete.items():
            warn_of_obsolete(key, replacement)
    entries = merge_layers(layers)
    mistakes = [mistake for layer in layers for mistake in layer.mistakes]
    mistakes += _choose_worker(layers, entries)
    try:
        config = kind.model_validate(nest_entries(entries))
        if verify:
            verify(config)
    except InvalidOptionsError as error:
        mistakes += [_add_key(mistake, entries) for mistake in error.mistakes]
    if mistakes:
        # The chosen worker is checked twice, so a mistake may occur twice.
        raise InvalidOptionsError({(mistake.key, mistake.problem): mistake for mistake in mistakes}.values())
    return config


def _choose_worker(layers: Sequence[Layer], entries: dict[KeyPath, Entry]) -> Iterable[Mistake]:
    """Give each of the workers the options of `worker`, and make the chosen one the worker.

    In one layer the options of a single worker win over those for all workers. A later layer wins over both, because
    the environment and the command line belong to one process.
    """
    names = {path[1]: entry for path, entry in entries.items() if path[:1] == ("workers",) and len(path) > 1}
    options = {name: _merge_worker_options(name, layers) for name in names}
    for name, own in options.items():
        entries.update({("workers", name, option): entry for option, entry in own.items()})
    chosen = entries.get(("worker", "id"))
    if chosen is None and len(names) == 1:
        ((only, entry),) = names.items()
        chosen = Entry(only, entry.key, entry.is_upper)
    if chosen is None or not names:
        return []
    wanted = str(chosen.value)
    if wanted not in names:
        return [replace(unknown((wanted,), names, "worker"), path=("worker", "id"), key=chosen.key)]
    entries.update({("worker", option): entry for option, entry in options[wanted].items()})
    entries["worker", "id"] = replace(chosen, value=wanted)
    return []


def _merge_worker_options(name: str, layers: Iterable[Layer]) -> dict[str, Entry]:
    options: dict[str, Entry] = {}
    for layer in layers:
        for prefix in (("worker",), ("workers", name)):
            depth = len(prefix)
            mine = {path[depth]: entry for path, entry in layer.entries.items() if path[:depth] == prefix != path}
            options.update(mine)
    options.pop("id", None)
    return options


def _add_key(mistake: Mistake, entries: Mapping[KeyPath, Entry]) -> Mistake:
    """Add the key in the user's spelling to the mistake, and change its suggestion to the same case."""
    entry, rest = _origin(mistake.path, entries)
    if entry is None:
        return replace(mistake, key=".".join(mistake.path))
    is_key = mistake.problem.startswith("unknown key")
    suggestion = mistake.suggestion.upper() if entry.is_upper and is_key else mistake.suggestion
    return replace(mistake, key=", ".join(filter(None, (entry.key, ".".join(rest)))), suggestion=suggestion)


def _origin(path: KeyPath, entries: Mapping[KeyPath, Entry]) -> tuple[Entry | None, KeyPath]:
    """Find the user's entry for a path, or for a section around it (then with the rest of the path), or else an entry
    inside it."""
    for depth in range(len(path), 0, -1):
        part = path[:depth]
        entry = entries.get(part) or entries.get((*part[:-1], part[-1].lower()))  # a model may change the case
        if entry:
            return entry, path[depth:]
    return next((entry for inner, entry in entries.items() if inner[: len(path)] == path), None), ()


WATCHED_SETTINGS = ("FAIRQUE", "CACHES", "DEBUG", "BASE_DIR", "DJANGO_REDIS_CONNECTION_FACTORY")
"""The settings on which the configuration depends."""

# A mistake at one of these paths may hide the server's address. Then a missing server is not reported as well.
_MAY_NAME_A_SERVER = ((), ("redis",), ("config_file",))

_NO_SERVER = (
    'no server is named; expected for example {"URL": "redis://127.0.0.1:6379/0"} here, or the environment variable '
    'FAIRQUE_REDIS__URL. The development server is used unasked only while DEBUG is true; {"URL": "embedded://"} asks for it'
)


NO_SERVER_URL = "unix:///tests-use-no-server-of-the-settings-but-private_server"
"""The URL in tests that capture tasks. If a call connects anyway, its error shows this text."""


def written_entries() -> dict[tuple[str, ...], Entry]:
    """Return all options of the present sources, with their keys in the user's spelling."""
    return merge_layers(all_layers(()))


def obsolete_keys() -> dict[str, str]:
    """Return the keys that have no effect, in the user's spelling, each with its replacement."""
    return {key: replacement for layer in all_layers(()) for key, replacement in layer.obsolete.items()}


def all_layers(overrides: Iterable[Mapping[str, Any]]) -> list[Layer]:
    layers = [settings_layer(), environment_layer(os.environ), *map(overrides_layer, overrides)]
    named = [entry for layer in layers if (entry := layer.entries.pop(("config_file",), None))]
    if named and named[-1].value is not None:
        layers.insert(1, file_layer(named[-1].value, named[-1].key))
    return layers


def settings_layer() -> Layer:
    from django.conf import settings  # the module can be imported before Django is set up

    layer = Layer()
    value = getattr(settings, "FAIRQUE", None)
    layer.add((), value, (), lambda written: "settings.FAIRQUE" + "".join(f'["{name}"]' for name in written))
    return layer


def overrides_layer(overrides: Mapping[str, Any]) -> Layer:
    """Return the layer of this process's overrides. None means that an option was not given, as for the options of a command."""
    layer = Layer()
    layer.add((), overrides, (), lambda written: f"override {'.'.join(written)}")
    layer.entries = {path: entry for path, entry in layer.entries.items() if entry.value is not None}
    return layer


def default_server_layer(layers: list[Layer], *, needs_server: bool) -> Layer:
    """Return a layer with the embedded server if no source names a server and DEBUG is true; else with the mistake."""
    layer = Layer()
    keys = {path[1] for layer in layers for path in layer.entries if path[:1] == ("redis",) and len(path) > 1}
    if keys & {*ADDRESSES, "port"} or any(
        mistake.path[:1] in _MAY_NAME_A_SERVER for layer in layers for mistake in layer.mistakes
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
"""The least similarity to an option's name at which a variable is reported. Variables of other programs may begin alike."""

_KEYS_WITHOUT_LEVEL = ("redis", *SCALARS)


def environment_layer(environ: Mapping[str, str]) -> Layer:
    layer = Layer()
    for name, value in sorted(environ.items()):
        path = _variable_path(name)
        if len(path) > 1 or path[0] in _KEYS_WITHOUT_LEVEL:
            layer.add(path, value, (name,), lambda written: f"environment variable {written[0]}")
    return layer


def find_misspelled_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Find variables that are not read, each with the probable correct name."""
    meant = {
        f"{section}_{option}": f"{VARIABLE_PREFIX}{section}{LEVEL_SEPARATOR}{option}".upper()
        for section, options in SECTIONS.items()
        for option in options.option_names()
    }
    for name, value in sorted(environ.items()):
        path = _variable_path(name)
        if len(path) > 1 or path[0] in _KEYS_WITHOUT_LEVEL or value.startswith("tcp://"):  # Kubernetes sets such values
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
    """Return the layer of a file. If the file can't be read, the layer has that mistake. ``named_by`` is the key that
    names it."""
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
    """Return the content of the file, and the reason why it can't be read, or an empty string."""
    import yaml  # costs 10 ms, and few configurations have a file

    if not isinstance(path, (str, os.PathLike)):
        return None, f"got {show(path)}"
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
    except ValueError:  # a date that does not exist, or a number with thousands of digits
        problem = f"{path} holds a date or a number that does not exist"
    else:
        problem = f"{path} has a key more than once: {'; '.join(duplicates)}"
    return None, problem


def _duplicate_keys(root: yaml.Node) -> Iterator[str]:
    """Find keys that a mapping has twice. YAML would silently use the last one."""
    import yaml

    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # YAML aliases lead to the same node
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
                    yield f"{show(name)} in lines {', '.join(map(str, found[:-1]))} and {found[-1]}"
