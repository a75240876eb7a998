"""The YAML file: reading it as a layer, writing a configuration to it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.options import Mistake, shown

from .layers import Layer
from .redis import REVEAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    import yaml

    from .models import FairQueueConfig


def file_layer(path: object, named_by: str = "") -> Layer:
    """What the file says; that it can't be read is a mistake of the layer. ``named_by`` is the key that names it."""
    layer = Layer()
    try:
        tree = _read_file(path)
    except _UnreadableError as error:
        problem = f"expected the path of a YAML file; {error}"
        layer.mistakes.append(Mistake("file", ("config_file",), problem, key=named_by or str(path)))
        return layer
    layer.add((), tree, (), lambda written: f"{'.'.join(written)} in {path}" if written else str(path))
    entry = layer.entries.pop(("config_file",), None)
    if entry:
        layer.mistakes.append(Mistake("unknown", ("config_file",), "a file can't name another one", key=entry.key))
    return layer


class _UnreadableError(Exception):
    pass


def _read_file(path: object) -> Any:
    import yaml  # costs 10 ms, and few configurations have a file

    if not isinstance(path, (str, os.PathLike)):
        raise _UnreadableError(f"got {shown(path)}")
    try:
        text = Path(path).read_text(encoding="utf-8")
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if not (duplicates := list(_duplicate_keys(node))):
                return loader.construct_document(node)
        finally:
            loader.dispose()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{path} can't be read: {getattr(error, 'strerror', None) or error}"
    except yaml.YAMLError as error:
        # Not its own text, which quotes the lines around: a password may stand there.
        mark, what = getattr(error, "problem_mark", None), getattr(error, "problem", None) or "not YAML"
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = f"{path} is not one: {what}{where}"
    except RecursionError:
        problem = f"{path} is nested too deeply"
    except ValueError:  # of a date that does not exist, or of a number with thousands of digits
        problem = f"{path} holds a date or a number that does not exist"
    else:
        problem = f"{path} has a key more than once: {'; '.join(duplicates)}"
    # Outside the handler, so that what it handled is not dragged along.
    raise _UnreadableError(problem)


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


def write_file(config: FairQueueConfig, path: str | os.PathLike[str]) -> None:
    """Write the configuration, readable by the owner only, all of it or nothing."""
    import yaml

    text = yaml.safe_dump(_file_tree(config), sort_keys=False, allow_unicode=True)
    target = Path(path)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def _file_tree(config: FairQueueConfig) -> dict[str, Any]:
    tree = config.model_dump(mode="json", exclude_none=True, context=REVEAL)
    common = config.queue.model_dump(mode="json")
    address = config.redis.given_addresses()
    if address and address[0] != "host":
        tree["redis"] = {name: value for name, value in tree["redis"].items() if name not in ("host", "port")}
    # With what is None as well, here and below, or what all have in common would stand there instead.
    queues = {name: queue.model_dump(mode="json") for name, queue in config.queues.items()}
    for name, queue in queues.items():
        tree["queues"][name] = {option: value for option, value in queue.items() if value != common[option]}
    tree["workers"] = {name: worker.model_dump(mode="json", exclude={"id"}) for name, worker in config.workers.items()}
    return tree
