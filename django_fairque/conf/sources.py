"""The sources of the configuration: Django's settings, a YAML file, the environment, and overrides (the command line).

A later source takes precedence over an earlier one: defaults, ``settings.FAIRQUE``, the file that the settings name,
the environment, overrides.

The environment variable ``FAIRQUE_REDIS__URL`` is ``redis.url``: two underscores separate the levels. A name without
two underscores is read only if the whole name is a key, because variables of other programs may begin with the same
text: Kubernetes sets ``FAIRQUE_REDIS_PORT`` for a service called fairque-redis.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from django_fairque.conf import urls
from django_fairque.conf.redis import ADDRESSES, PARTS_OF_URL, RedisConfig
from django_fairque.conf.sections import SECTIONS, TopLevelOptions, WorkerConfig
from django_fairque.engine.model.options import Mistake, Options, QueueConfig, show, unknown

KeyPath = tuple[str, ...]

SECTION_NAMES = ("redis", "worker", "workers", "queue", "queues", "plans", "schedules", "monitor")
SCALARS = (*TopLevelOptions.model_fields, "config_file")

ABOUT_SERVER = {*ADDRESSES, *PARTS_OF_URL, "cluster"}
"""Options that name the server, its user or its encryption. If a later source names another server, these options are
dropped, because credentials for one server must never be sent to another."""

# The paths of mappings in the configuration, with their options. "*" stands for a name that the project has chosen. All
# other paths contain values.
_NESTING: dict[KeyPath, type[Options] | None] = {
    (): None,
    **{(name,): SECTIONS.get(name) for name in SECTION_NAMES},
    ("workers", "*"): WorkerConfig,
    ("queues", "*"): QueueConfig,
    **dict.fromkeys(
        (("schedules", "*"), ("plans", "*"), ("redis", "sentinel"), ("monitor", "limits"), ("monitor", "webhook"))
    ),
    **{(*queue, option): None for queue in (("queue",), ("queues", "*")) for option in ("sla", "starvation", "lanes")},
}


def _pattern(path: KeyPath) -> KeyPath:
    """Return the path with "*" in place of a name that the project has chosen, unless `_NESTING` contains the path
    itself.
    """
    return path if path in _NESTING else (*path[:1], "*", *path[2:])


def nests(path: KeyPath) -> bool:
    return _pattern(path) in _NESTING


class Source:
    """The options from one source, as a tree with current option names in lower case.

    ``describe`` returns the name of a key of this source for an error message. ``is_upper``: the keys of this source,
    and so also suggested keys, are in capitals. ``skips_none``: None means that an option was not given, as for the
    options of a command.
    """

    def __init__(self, describe: Callable[[KeyPath], str], *, is_upper: bool = False, skips_none: bool = False) -> None:
        self.describe = describe
        self.is_upper = is_upper
        self.skips_none = skips_none
        self.tree: dict[str, Any] = {}
        self.mistakes: list[Mistake] = []

    def add(self, value: Any, path: KeyPath = ()) -> None:
        """Add the value of a key, together with the values that are nested in it."""
        for name in reversed(path):
            value = {name: value}
        self.tree = merge(self.tree, self._normalize((), value))

    def has(self, path: KeyPath) -> bool:
        tree: Any = self.tree
        for name in path:
            # a pydantic model may have changed the case of the name
            key = name if isinstance(tree, Mapping) and name in tree else name.lower()
            if not isinstance(tree, Mapping) or key not in tree:
                return False
            tree = tree[key]
        return True

    def _normalize(self, path: KeyPath, value: Any) -> dict[str, Any]:
        """Return the section at ``path``, with current option names in lower case."""
        if path == ("redis",) and isinstance(value, str):
            value = {"url": value}
        if path == ("workers",) and isinstance(value, (list, tuple)):
            value = self._by_id(value)
        value = {} if value is None else value
        if not isinstance(value, Mapping):
            is_secret = path[:1] == ("redis",) or path == ("monitor", "webhook")
            came = "a value that is not shown" if is_secret else show(value)
            self._report("value", path, f"expected a mapping; got {came}")
            return {}
        kind, chosen_by_user, section = _NESTING[_pattern(path)], (*path, "*") in _NESTING, dict[str, Any]()
        for written, inner in value.items():
            name = str(written) if chosen_by_user else str(written).lower()
            name = kind.renamed.get(name, name) if kind else name
            # None may come from os.environ.get(), if the variable is missing
            if inner is None and (self.skips_none or path[:1] == ("redis",)):
                continue
            if kind and name in kind.model_fields and name not in kind.option_names():
                self.mistakes.append(
                    replace(unknown((*path, name), kind.option_names()), key=self.describe((*path, name)))
                )
                continue
            if name in section:
                self._report("conflict", (*path, name), f"expected once; got it a second time, as {written}")
            section[name] = self._normalize((*path, name), inner) if nests((*path, name)) else inner
        return section

    def _by_id(self, workers: Iterable[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for worker in workers:
            given = worker.items() if isinstance(worker, Mapping) else ()
            options = {str(name).lower(): value for name, value in given}
            name = options.pop("id", None)
            if name is None or str(name) in found:
                text = f"expected a list of mappings, each with a unique id; got {show(name or worker)}"
                self._report("value", ("workers",), text)
            else:
                found[str(name)] = options
        return found

    def _report(self, kind: Any, path: KeyPath, problem: str) -> None:
        self.mistakes.append(Mistake(kind, path, problem, key=self.describe(path)))


def merge(earlier: dict[str, Any], later: dict[str, Any], path: KeyPath = ()) -> dict[str, Any]:
    """Merge two trees: sections by their keys; for a value that both trees have, take the later tree's value."""
    merged = dict(earlier)
    for name, value in later.items():
        inner = (*path, name)
        merged[name] = merge(earlier.get(name, {}), value, inner) if nests(inner) else value
    return merged


def merge_sources(sources: Iterable[Source]) -> dict[str, Any]:
    """Return the tree of all options. If several sources have the same key, the last source takes precedence."""
    tree: dict[str, Any] = {}
    for source in sources:
        earlier, later = tree.get("redis", {}), _with_options_of_url(source.tree.get("redis", {}))
        if _names_another_server(later, earlier):
            tree["redis"] = {name: value for name, value in earlier.items() if name not in ABOUT_SERVER}
        tree = merge(tree, {**source.tree, "redis": later})
    return tree


def _with_options_of_url(redis: Mapping[str, Any]) -> dict[str, Any]:
    """Add the options that are contained in the URL, so that a later source can override each of them separately."""
    url = urls.join_urls(redis.get("url"))
    options = urls.split_url(url)[1] if isinstance(url, str) else {}
    return {**{name: value for name, value in options.items() if name in RedisConfig.model_fields}, **redis}


def _names_another_server(later: Mapping[str, Any], earlier: Mapping[str, Any]) -> bool:
    """Return whether ``later`` names another server. False if it only changes a part of the address that ``earlier``
    names.
    """
    named, before = later.keys() & {*ADDRESSES}, earlier.keys() & {*ADDRESSES}
    is_part = named in ({"host"}, {"sentinel"}) and before <= named
    return bool(named) and not is_part


def choose_worker(sources: Sequence[Source], tree: dict[str, Any]) -> tuple[str | None, list[Mistake]]:
    """Add the options of ``worker`` to each worker in ``tree``, and set the chosen worker as the worker of this
    process.

    Within one source, the options of a single worker take precedence over the options for all workers. A later source
    takes precedence over both, because the environment and the command line belong to one process.

    Returns:
        The name of the chosen worker, and the mistakes in the choice.
    """
    workers = tree.get("workers", {})
    for name in workers:
        options: dict[str, Any] = {}
        for source in sources:
            options |= source.tree.get("worker", {}) | source.tree.get("workers", {}).get(name, {})
        workers[name] = {option: value for option, value in options.items() if option != "id"}
    wanted = tree.get("worker", {}).get("id", next(iter(workers)) if len(workers) == 1 else None)
    if wanted is None or not workers:
        return None, []
    name = str(wanted)
    if name not in workers:
        return None, [replace(unknown((name,), workers, "worker"), path=("worker", "id"))]
    tree["worker"] = {**workers[name], "id": name}
    return name, []


def add_key(mistake: Mistake, sources: Sequence[Source], worker: str | None) -> Mistake:
    """Add the source's name of the key to a mistake, and change the suggested key to the case of the source.

    ``worker`` is the name of the chosen worker, because a mistake in its options is a mistake in ``workers``.
    """
    path = mistake.path
    if worker is not None and path[:1] == ("worker",):
        path = ("workers", worker, *path[1:])
    places = [path, ("worker", *path[2:])] if path[:1] == ("workers",) else [path]
    for length_of_rest in range(len(path)):
        for source in reversed(sources):
            for place in places:
                key = place[: len(place) - length_of_rest]
                if key and source.has(key):
                    written = ", ".join(filter(None, (source.describe(key), ".".join(place[len(key) :]))))
                    is_upper = source.is_upper and mistake.problem.startswith("unknown key")
                    suggestion = mistake.suggestion.upper() if is_upper else mistake.suggestion
                    return replace(mistake, key=written, suggestion=suggestion)
    return replace(mistake, key=".".join(mistake.path))


WATCHED_SETTINGS = ("FAIRQUE", "CACHES", "DEBUG", "BASE_DIR", "DJANGO_REDIS_CONNECTION_FACTORY")
"""The settings on which the configuration depends."""

# Paths at which a mistake may hide the server's address. If there is such a mistake, a missing server is not reported
# in addition.
_MAY_NAME_A_SERVER = ((), ("redis",), ("config_file",))

_NO_SERVER = (
    'no server is named; expected for example {"URL": "redis://127.0.0.1:6379/0"} here, or the environment variable '
    'FAIRQUE_REDIS__URL. The development server is used unasked only while DEBUG is true; {"URL": "embedded://"} asks for it'
)


NO_SERVER_URL = "unix:///tests-use-no-server-of-the-settings-but-private_server"
"""The server's URL in tests that capture tasks. If a call connects nevertheless, its error shows this text."""


def read_sources(overrides: Iterable[Mapping[str, Any]] = ()) -> list[Source]:
    sources = [read_settings(), read_environment(os.environ), *map(read_overrides, overrides)]
    named = [(source, source.tree.pop("config_file")) for source in sources if "config_file" in source.tree]
    if named and named[-1][1] is not None:
        source, path = named[-1]
        sources.insert(1, read_file(path, source.describe(("config_file",))))
    return sources


def _describe_setting(path: KeyPath) -> str:
    names = (name if (*path[:depth], "*") in _NESTING else name.upper() for depth, name in enumerate(path))
    return "settings.FAIRQUE" + "".join(f'["{name}"]' for name in names)


def read_settings() -> Source:
    from django.conf import settings  # imported here, because this module can be imported before Django is set up

    source = Source(_describe_setting, is_upper=True)
    source.add(getattr(settings, "FAIRQUE", None))
    return source


def read_overrides(overrides: Mapping[str, Any]) -> Source:
    source = Source(lambda path: f"override {'.'.join(path)}", skips_none=True)
    source.add(overrides)
    return source


def read_default_server(sources: Sequence[Source], *, needs_server: bool) -> Source:
    """Return a source that supplies the embedded server, if no other source names a server and DEBUG is true. If DEBUG is
    false, the source has the mistake that no server is named.
    """
    source = Source(_describe_setting, is_upper=True)
    keys = {name for other in sources for name in other.tree.get("redis", {})}
    mistakes = [mistake.path[:1] for other in sources for mistake in other.mistakes]
    if keys & {*ADDRESSES, "port"} or any(path in _MAY_NAME_A_SERVER for path in mistakes):
        return source
    from django.conf import settings

    if settings.DEBUG or not needs_server:
        source.add({"redis": "embedded://" if settings.DEBUG else NO_SERVER_URL})
    else:
        key = _describe_setting(("redis",))
        source.mistakes.append(Mistake("server", ("redis",), _NO_SERVER, key=key))
    return source


VARIABLE_PREFIX = "FAIRQUE_"
LEVEL_SEPARATOR = "__"
SIMILARITY_CUTOFF = 0.8
"""Minimum similarity of a variable's name to an option's name for a report. Variables of other programs may begin with
the same text."""

_KEYS_WITHOUT_LEVEL = ("redis", *SCALARS)


def read_environment(environ: Mapping[str, str]) -> Source:
    variables: dict[KeyPath, str] = {}

    def describe(path: KeyPath) -> str:
        names = [name for known, name in variables.items() if known[: len(path)] == path]
        return f"environment variable {(names or [VARIABLE_PREFIX + LEVEL_SEPARATOR.join(path).upper()])[0]}"

    source = Source(describe, is_upper=True)
    for name, value in sorted(environ.items()):
        path = _variable_path(name)
        if len(path) > 1 or path[0] in _KEYS_WITHOUT_LEVEL:
            variables[("redis", "url") if path == ("redis",) else path] = name
            source.add(value, path)
    return source


def find_misspelled_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return the environment variables that are not read, each with the name that was probably meant."""
    meant = {
        f"{section}_{option}": f"{VARIABLE_PREFIX}{section}{LEVEL_SEPARATOR}{option}".upper()
        for section, options in SECTIONS.items()
        for option in options.option_names()
    }
    for name, value in sorted(environ.items()):
        path = _variable_path(name)
        # ignored: Kubernetes sets variables with such names or values
        if len(path) > 1 or path[0] in _KEYS_WITHOUT_LEVEL or value.startswith("tcp://"):
            continue
        if path[0] in meant:
            yield name, meant[path[0]]
        for near in get_close_matches(path[0], SCALARS, n=1, cutoff=SIMILARITY_CUTOFF):
            yield name, f"{VARIABLE_PREFIX}{near}".upper()


def _variable_path(name: str) -> KeyPath:
    if not name.startswith(VARIABLE_PREFIX):
        return ("",)
    return tuple(name.removeprefix(VARIABLE_PREFIX).lower().split(LEVEL_SEPARATOR))


def read_file(path: object, named_by: str = "") -> Source:
    """Return the options in a file. If the file can't be read, the result contains this mistake. ``named_by`` is the
    key that names the file.
    """
    source = Source(lambda key: f"{'.'.join(key)} in {path}" if key else str(path))
    tree, problem = _parse_file(path)
    if problem:
        text = f"expected the path of a YAML file; {problem}"
        source.mistakes.append(Mistake("file", ("config_file",), text, key=named_by or str(path)))
        return source
    source.add(tree)
    if source.tree.pop("config_file", None):
        key = source.describe(("config_file",))
        source.mistakes.append(Mistake("unknown", ("config_file",), "a file can't name another one", key=key))
    return source


def _parse_file(path: object) -> tuple[Any, str]:
    """Return two texts: the content of the file, and the reason why the file can't be read (empty if it was read)."""
    import yaml  # imported here, because the import takes 10 ms and few configurations have a file

    class Loader(yaml.SafeLoader):
        """A YAML loader that refuses a key that a mapping contains twice. Otherwise YAML would silently use the last
        value.
        """

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            known = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in known:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {show(key.value)} is there a second time", problem_mark=key.start_mark
                    )
                known.add(key.value if isinstance(key, yaml.ScalarNode) else None)
            return super().construct_mapping(node, deep)

    if not isinstance(path, (str, os.PathLike)):
        return None, f"got {show(path)}"
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader), ""  # noqa: S506 - derived from the safe loader
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{path} can't be read: {getattr(error, 'strerror', None) or error}"
    except yaml.YAMLError as error:
        # The error's own text quotes lines of the file, which may contain a password.
        mark, what = getattr(error, "problem_mark", None), getattr(error, "problem", None) or "not YAML"
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = f"{path} is not one: {what}{where}"
    except RecursionError:
        problem = f"{path} is nested too deeply"
    except ValueError:  # the file contains an impossible date, or a number with thousands of digits
        problem = f"{path} holds a date or a number that does not exist"
    return None, problem
