"""From layers to a configuration, with every mistake named as the user wrote it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from django_fairque.engine.model.options import InvalidOptionsError, Mistake, unknown, warn_of_obsolete

from .layers import Entry, Layer, Path, merge_layers, nest_entries
from .models import FairQueueConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

AnyConfig = TypeVar("AnyConfig", bound=FairQueueConfig)


def assemble(
    kind: type[AnyConfig], layers: Sequence[Layer], verify: Callable[[AnyConfig], None] | None = None
) -> AnyConfig:
    """Lay the layers over another, the last on top, and check the result.

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


def _choose_worker(layers: Sequence[Layer], entries: dict[Path, Entry]) -> Iterable[Mistake]:
    """Give each of the workers what `worker` says for all, and make the chosen one the worker.

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


def _named(mistake: Mistake, entries: Mapping[Path, Entry]) -> Mistake:
    """The mistake with its key as the user wrote it, and its suggestion in the same case."""
    entry, rest = _origin(mistake.path, entries)
    if entry is None:
        return replace(mistake, key=".".join(mistake.path))
    is_key = mistake.problem.startswith("unknown key")
    suggestion = mistake.suggestion.upper() if entry.is_upper and is_key else mistake.suggestion
    return replace(mistake, key=", ".join(filter(None, (entry.key, ".".join(rest)))), suggestion=suggestion)


def _origin(path: Path, entries: Mapping[Path, Entry]) -> tuple[Entry | None, Path]:
    """What the user wrote there, or around it (then with the rest of the path), or, for a section, in it."""
    for depth in range(len(path), 0, -1):
        part = path[:depth]
        entry = entries.get(part) or entries.get((*part[:-1], part[-1].lower()))  # a model may change the case
        if entry:
            return entry, path[depth:]
    return next((entry for inner, entry in entries.items() if inner[: len(path)] == path), None), ()
