"""Sources of configuration as layers of entries that remember how the user wrote them, and a configuration made from them.

A mistake is reported with the key as the user wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from django_fairque.conf import urls
from django_fairque.conf.redis import ADDRESSES, PARTS_OF_URL, RedisConfig
from django_fairque.conf.sections import SECTIONS, TopLevelOptions, WorkerConfig
from django_fairque.engine.model.options import (
    InvalidOptionsError,
    Mistake,
    Options,
    QueueConfig,
    shown,
    unknown,
    warn_of_obsolete,
)

KeyPath = tuple[str, ...]

SECTION_NAMES = ("redis", "worker", "workers", "queue", "queues", "schedules", "monitor")
SCALARS = (*TopLevelOptions.model_fields, "config_file")

ABOUT_SERVER = {*ADDRESSES, *PARTS_OF_URL, "cluster"}

# The paths at which the configuration nests, with their options; "*" is a name that the user chose. All other paths hold
# values.
_NESTING: dict[KeyPath, type[Options] | None] = {
    (): None,
    **{(name,): SECTIONS.get(name) for name in SECTION_NAMES},
    ("workers", "*"): WorkerConfig,
    ("queues", "*"): QueueConfig,
    **dict.fromkeys((("schedules", "*"), ("redis", "sentinel"), ("monitor", "limits"))),
    **{(*queue, option): None for queue in (("queue",), ("queues", "*")) for option in ("sla", "starvation")},
}


@dataclass(frozen=True)
class Entry:
    """A value and its key as the user wrote it; ``is_upper``: the key is in capitals, and a suggestion should be too."""

    value: Any
    key: str
    is_upper: bool


@dataclass
class Layer:
    """The options that one source gives."""

    entries: dict[KeyPath, Entry] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    obsolete: dict[str, str] = field(default_factory=dict)
    """Keys that have no effect, as the user wrote them, each with what replaced it."""

    def add(self, path: KeyPath, value: Any, written: KeyPath, label: Callable[[KeyPath], str]) -> None:
        """Add a value, or the values that are nested in it; ``written`` is ``path`` before its case was folded."""
        if value is None and path[:1] == ("redis",) and len(path) > 1:
            return  # os.environ.get() found no such variable
        key = label(written)
        kind = _NESTING.get(_pattern(path[:-1]))
        if kind and path[-1] in kind.obsolete:
            self.obsolete[key] = kind.obsolete[path[-1]]
            return
        if kind:  # by the current name, so that a later source overrides it by either name
            path = (*path[:-1], kind.renamed.get(path[-1], path[-1]))
        if path == ("redis",) and isinstance(value, str):
            path = ("redis", "url")
        if path == ("workers",) and isinstance(value, (list, tuple)):
            value = self._by_id(value, key)
        if nests(path):
            value = {} if value is None else value
            if not isinstance(value, Mapping):
                came = "a value that is not shown" if path[:1] == ("redis",) else shown(value)
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
                self.mistakes.append(Mistake("value", ("workers",), f"{text}; got {shown(name or worker)}", key=key))
            else:
                found[str(name)] = options
        return found

    def unfold_url(self) -> None:
        """Make entries of what the URL carries, so that a later source wins over it part by part."""
        entry = self.entries.get(("redis", "url"))
        if entry is None or not isinstance(entry.value, str):
            return
        for name, value in urls.split_url(entry.value)[1].items():
            if name in RedisConfig.model_fields:
                self.entries.setdefault(("redis", name), Entry(value, entry.key, entry.is_upper))


def nests(path: KeyPath) -> bool:
    return _pattern(path) in _NESTING


def _pattern(path: KeyPath) -> KeyPath:
    """The path, or, where `_NESTING` has no such path, the path with the name that the user chose replaced."""
    return path if path in _NESTING else (*path[:1], "*", *path[2:])


def merge_layers(layers: Iterable[Layer]) -> dict[KeyPath, Entry]:
    """Return the entries of all layers. Of several entries for one key, the last layer's wins."""
    entries: dict[KeyPath, Entry] = {}
    for layer in layers:
        if _names_another_server(layer.entries, entries):
            entries = {path: entry for path, entry in entries.items() if not _is_about_server(path)}
        entries.update(layer.entries)
    return entries


def _names_another_server(later: Mapping[KeyPath, Entry], earlier: Mapping[KeyPath, Entry]) -> bool:
    """Whether ``later`` names a server of its own, rather than changing a part of the one that ``earlier`` names."""
    named, before = ({path[1] for path in each if _is_about_server(path)} & {*ADDRESSES} for each in (later, earlier))
    is_part = named in ({"host"}, {"sentinel"}) and before <= named
    return bool(named) and not is_part


def _is_about_server(path: KeyPath) -> bool:
    """Whether it says which server, as whom and how safely; credentials for one server are not sent to another."""
    return path[:1] == ("redis",) and (*path, "")[1] in ABOUT_SERVER


def nest_entries(entries: Mapping[KeyPath, Entry]) -> dict[str, Any]:
    """The entries as a tree of plain values."""
    tree: dict[str, Any] = {}
    for path, entry in entries.items():
        if nests(path):
            _at(tree, path)
        else:
            _at(tree, path[:-1])[path[-1]] = entry.value
    return tree


def _at(tree: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    for name in path:
        tree = tree.setdefault(name, {})
    return tree


AnyOptions = TypeVar("AnyOptions", bound=Options)


def assemble(
    kind: type[AnyOptions], layers: Sequence[Layer], verify: Callable[[AnyOptions], None] | None = None
) -> AnyOptions:
    """Make a configuration from layers, of which later ones win, and check it.

    ``verify`` may look at the configuration in a wider world; it raises `InvalidOptionsError` as sections do.
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
        mistakes += [_named(mistake, entries) for mistake in error.mistakes]
    if mistakes:
        # A worker that is chosen is checked twice.
        raise InvalidOptionsError({(mistake.key, mistake.problem): mistake for mistake in mistakes}.values())
    return config


def _choose_worker(layers: Sequence[Layer], entries: dict[KeyPath, Entry]) -> Iterable[Mistake]:
    """Give each of the workers the options of `worker`, and make the chosen one the worker.

    In one layer a worker's own options win over those for all; a later layer wins over both, so that the environment
    and the command line, which speak to one process, have the last word.
    """
    names = {path[1]: entry for path, entry in entries.items() if path[:1] == ("workers",) and len(path) > 1}
    options = {name: _options_of(name, layers) for name in names}
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


def _options_of(name: str, layers: Iterable[Layer]) -> dict[str, Entry]:
    options: dict[str, Entry] = {}
    for layer in layers:
        for prefix in (("worker",), ("workers", name)):
            depth = len(prefix)
            mine = {path[depth]: entry for path, entry in layer.entries.items() if path[:depth] == prefix != path}
            options.update(mine)
    options.pop("id", None)
    return options


def _named(mistake: Mistake, entries: Mapping[KeyPath, Entry]) -> Mistake:
    """The mistake with its key as the user wrote it, and its suggestion in the same case."""
    entry, rest = _origin(mistake.path, entries)
    if entry is None:
        return replace(mistake, key=".".join(mistake.path))
    is_key = mistake.problem.startswith("unknown key")
    suggestion = mistake.suggestion.upper() if entry.is_upper and is_key else mistake.suggestion
    return replace(mistake, key=", ".join(filter(None, (entry.key, ".".join(rest)))), suggestion=suggestion)


def _origin(path: KeyPath, entries: Mapping[KeyPath, Entry]) -> tuple[Entry | None, KeyPath]:
    """What the user wrote there, or around it (then with the rest of the path), or, for a section, in it."""
    for depth in range(len(path), 0, -1):
        part = path[:depth]
        entry = entries.get(part) or entries.get((*part[:-1], part[-1].lower()))  # a model may change the case
        if entry:
            return entry, path[depth:]
    return next((entry for inner, entry in entries.items() if inner[: len(path)] == path), None), ()
