"""Every public name documents its arguments, what it returns and what it raises.

Public are the names in each ``__all__`` of the package, those that a module imports as themselves, the parts of a queue
(`PARTS`), and the classes of the package that their methods return, or that fields of the engine's classes hold. Read from
the source, so that nothing needs to be imported.
"""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pytest

import django_fairque
from tests import conventions

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS = {
    "django_fairque.engine.dead_letters.dead_letters": ("DeadLetterQueue",),
    "django_fairque.engine.dependencies.dependencies": ("XCom",),
    "django_fairque.engine.inspection.task_logs": ("TaskLogs",),
    "django_fairque.engine.queue.async_queue": (
        "AsyncDeadLetterQueue",
        "AsyncOrganizationQueue",
        "AsyncSchedules",
        "AsyncTaskLogs",
        "AsyncUserQueue",
        "AsyncXCom",
    ),
    "django_fairque.engine.schedules.schedules": ("Schedules",),
    "django_fairque.engine.users.organizations": ("OrganizationQueue",),
    "django_fairque.engine.users.users": ("UserQueue",),
    "django_fairque.tasks.definition": ("TaskDefinition",),
}
"""Public classes that no ``__all__`` contains: attributes of a queue, and what ``@task`` returns."""
COMMON_PARAMETERS = {"now"}
"""Documented once, in the docstrings of `FairQueue` and of its parts."""
RETURN = re.compile(r"\b(Returns?|Yields?|Whether)\b|\b(A|The) (decorator|context manager)\b")
"""Phrases with which a docstring describes the returned value."""
DEFAULT = re.compile(r"\bdefaults?\b|\bNone\b|\bif given\b|\bif False\b")
"""Phrases with which it describes the default of an argument."""
UNIT = re.compile(
    r"\bseconds?\b|\bminutes\b|\bUnix times?\b|\btimedelta\b|\bnumbers?\b|\bweights?\b|monotonic|\bplace\b"
)
"""Phrases with which it states the unit of a number that may have a fraction."""
REFERENCE = re.compile(
    r"\b(those|that|as|described|explain\w*|are|error is)\b[^.]* (of|by|for|in|there|does)\b[^.]*`", re.IGNORECASE
)
"""Phrases with which it refers to another docstring."""
NO_RETURN = re.compile(r"^(None|Never|NoReturn|Self)?$")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
READS = {"sla_ledger", "user_stats"}
"""Methods of a queue that take ``now`` and change nothing."""
HEADERS = re.compile(r"^\s*(Args|Arguments|Parameters|Returns|Yields|Raises):\s*$", re.MULTILINE)


class Documented(NamedTuple):
    """A public name with its definition in the source."""

    module: str
    path: str
    node: ast.AST
    docstring: str
    owner: ast.ClassDef | None = None

    @property
    def name(self) -> str:
        return f"{self.module}.{self.path}"


def resolve(module: str, name: str) -> tuple[str, str] | None:
    """The module of the package in which a name is defined; None if it comes from elsewhere."""
    tree = conventions.trees().get(module)
    if tree is None:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    base = conventions._absolute(module, node)
                    if f"{base}.{alias.name}" in conventions.trees():
                        return f"{base}.{alias.name}", ""
                    return resolve(base, alias.name)
    return (module, name) if definition(module, name) is not None else None


def definition(module: str, name: str) -> ast.AST | None:
    for node in conventions.trees()[module].body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, FUNCTIONS) and node.name == name and not has_decorator(node, "overload"):
            return node
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            return node
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return node
    return None


def exported() -> Iterator[tuple[str, str]]:
    """Each name in an ``__all__``, and each that is imported as itself, with its module."""
    for module, tree in conventions.trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                yield from ((module, alias.name) for alias in node.names if alias.asname == alias.name)
            if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["__all__"]:
                yield from ((module, name) for name in ast.literal_eval(node.value))


@cache
def classes() -> dict[str, tuple[str, ast.ClassDef]]:
    return {
        node.name: (module, node)
        for module, tree in conventions.trees().items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


@cache
def public() -> dict[str, Documented]:
    """All public names: functions, classes, their methods, properties and fields."""
    found: dict[str, Documented] = {}
    waiting = [*exported(), *((module, name) for module, names in PARTS.items() for name in names)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        where = resolve(*waiting.pop())
        if where is None or where in seen:
            continue
        seen.add(where)
        module, name = where
        node = definition(module, name) if name else conventions.trees()[module]
        assert node is not None
        for member in [*with_members(module, name, node)]:
            found[member.name] = member
            if isinstance(member.node, ast.FunctionDef | ast.AsyncFunctionDef):
                waiting.extend(classes_in(member.node.returns))
            elif isinstance(member.node, ast.AnnAssign) and module.startswith("django_fairque.engine."):
                waiting.extend(classes_in(member.node.annotation))
    return dict(sorted(found.items()))


def classes_in(annotation: ast.expr | None) -> Iterator[tuple[str, str]]:
    """The classes of the package that an annotation names."""
    for node in ast.walk(annotation) if annotation else ():
        name = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
        if isinstance(name, str) and name in classes() and not name.startswith("_"):
            yield classes()[name][0], name


def with_members(module: str, name: str, node: ast.AST) -> Iterator[Documented]:
    if isinstance(node, ast.Module):
        yield Documented(module, "", node, ast.get_docstring(node) or "")
    elif isinstance(node, ast.ClassDef):
        yield Documented(module, name, node, ast.get_docstring(node) or "")
        members: set[str] = set()
        for where, owner in bases(module, node):
            for member in members_of(where, owner):
                if member.path not in members:
                    members.add(member.path)
                    yield member
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield Documented(module, name, node, ast.get_docstring(node) or "")
    else:
        tree = conventions.trees()[module]
        text = text_below(tree.body, node)
        if not text and f"``{name}``" in (ast.get_docstring(tree) or ""):
            text = "documented by its module"
        yield Documented(module, name, node, text)


def bases(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """The class, and those of the package that it extends."""
    yield module, node
    for base in node.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(name, ast.Name) and name.id in classes():
            yield from bases(*classes()[name.id])


def members_of(module: str, owner: ast.ClassDef) -> Iterator[Documented]:
    for node in owner.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if is_public(node.name) and not has_decorator(node, "overload", "setter", "override"):
                yield Documented(module, f"{owner.name}.{node.name}", node, ast.get_docstring(node) or "", owner)
        elif is_data(owner):
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if isinstance(node, ast.Assign) and is_enum(owner):
                target = node.targets[0]  # type: ignore[assignment]
            if isinstance(target, ast.Name) and is_public(target.id) and not is_class_variable(node):
                text = text_below(owner.body, node)
                if not text and f"``{target.id}``" in (ast.get_docstring(owner) or ""):
                    text = "documented by its class"
                yield Documented(module, f"{owner.name}.{target.id}", node, text, owner)


def is_public(name: str) -> bool:
    return not name.startswith("_") and name not in ("model_config", "model_post_init")


def is_class_variable(node: ast.AST) -> bool:
    return isinstance(node, ast.AnnAssign) and "ClassVar" in ast.unparse(node.annotation)


def is_enum(owner: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith("Enum") for base in owner.bases)


def is_data(owner: ast.ClassDef) -> bool:
    """Whether its annotated names are fields that its user reads."""
    if is_enum(owner) or any("dataclass" in ast.unparse(decorator) for decorator in owner.decorator_list):
        return True
    for base in owner.bases:
        name = ast.unparse(base)
        if name in ("NamedTuple", "TypedDict", "BaseModel", "BaseSettings"):
            return True
        if name in classes() and is_data(classes()[name][1]):
            return True
    return False


def has_decorator(node: ast.FunctionDef | ast.AsyncFunctionDef, *names: str) -> bool:
    found = {ast.unparse(decorator).split("(")[0].rsplit(".", 1)[-1] for decorator in node.decorator_list}
    return bool(found & set(names))


def text_below(body: list[ast.stmt], node: ast.AST) -> str:
    """The string that follows an assignment."""
    at = body.index(node)  # type: ignore[arg-type]
    following = body[at + 1] if at + 1 < len(body) else None
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        return str(following.value.value)
    return ""


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    for argument in every:
        if argument is not None and argument.arg not in ("self", "cls") and not argument.arg.startswith("_"):
            yield argument.arg


def optional_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    arguments = function.args
    yield from (argument.arg for argument in arguments.args[len(arguments.args) - len(arguments.defaults) :])
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            yield argument.arg


def fractions(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Parameters that take a number with a fraction, as moments and lengths of time do."""
    for argument in [*function.args.args, *function.args.kwonlyargs]:
        if argument.annotation is not None and re.search(r"\bfloat\b", ast.unparse(argument.annotation)):
            yield argument.arg


def functions() -> dict[str, tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Public functions, methods and constructors with their docstrings; a constructor has that of its class, too."""
    found: dict[str, tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]] = {}
    for name, member in public().items():
        if isinstance(member.node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[name] = member.node, member.docstring
        elif isinstance(member.node, ast.ClassDef):
            for node in member.node.body:
                if isinstance(node, ast.FunctionDef) and node.name == "__init__" and not is_internal(member.docstring):
                    found[f"{name}.__init__"] = node, f"{member.docstring}\n{ast.get_docstring(node) or ''}"
    return found


def is_internal(docstring: str) -> bool:
    """Whether the package makes these objects, not its user. Their docstrings name the function that does."""
    return re.search(r"(?<!best )\b([Mm]ade|returned) by\b", docstring) is not None


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return has_decorator(node, "property", "cached_property")


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name, member in public().items() if not member.docstring] == []


def test_every_parameter_is_named_by_the_docstring() -> None:
    missing = {
        name: gaps
        for name, (node, docstring) in functions().items()
        if (
            gaps := [
                name for name in parameters(node) if name not in COMMON_PARAMETERS and f"``{name}``" not in docstring
            ]
        )
    }
    assert missing == {}


def test_docstrings_name_the_defaults_of_parameters() -> None:
    missing = [
        name
        for name, (node, docstring) in functions().items()
        if set(optional_parameters(node)) - COMMON_PARAMETERS
        and not DEFAULT.search(docstring)
        and not REFERENCE.search(docstring)
    ]
    assert missing == []


def test_docstrings_name_the_units_of_numbers() -> None:
    missing = {
        name: gaps
        for name, (node, docstring) in functions().items()
        if (gaps := [name for name in fractions(node) if name not in COMMON_PARAMETERS])
        and not UNIT.search(docstring)
        and not REFERENCE.search(docstring)
    }
    assert missing == {}


def test_every_docstring_states_what_is_returned() -> None:
    missing = [
        name
        for name, (node, docstring) in functions().items()
        if not NO_RETURN.match(ast.unparse(node.returns) if node.returns else "")
        and not is_property(node)
        and not RETURN.search(docstring)
    ]
    assert missing == []


@pytest.mark.thorough
def test_every_error_that_is_raised_is_documented() -> None:
    missing = {}
    for name, (node, docstring) in functions().items():
        raised = {
            part.exc.func.id
            for part in ast.walk(node)
            if isinstance(part, ast.Raise) and isinstance(part.exc, ast.Call) and isinstance(part.exc.func, ast.Name)
        }
        raised = {error for error in raised if error[0].isupper()}
        if gaps := sorted(error for error in raised if f"`{error}`" not in docstring):
            missing[name] = gaps
    assert missing == {}


def test_docstrings_name_raised_errors_in_one_form() -> None:
    """A sentence with "Raises", and the class between single backticks."""
    wrong = [
        name
        for name, (_, docstring) in functions().items()
        if not name.endswith("Error.__init__")
        and re.search(r"`\w+Error`", docstring)
        and not re.search(r"\b[Rr]aises?\b", docstring)
    ]
    assert wrong == []


def test_docstrings_have_no_section_headers() -> None:
    assert [name for name, member in public().items() if HEADERS.search(member.docstring)] == []


def test_asynchronous_methods_have_the_same_help() -> None:
    """Except for the names of the classes."""
    queue, async_queue = django_fairque.FairQueue, django_fairque.AsyncFairQueue
    names = [name for name in vars(queue) if is_public(name) and callable(getattr(queue, name))]
    assert len(names) > 60
    for name in names:
        text, async_text = (inspect.getdoc(getattr(kind, name)) or "" for kind in (queue, async_queue))
        assert text
        assert async_text.replace("Async", "") == text, name


def test_the_engine_describes_every_operation_that_changes_something() -> None:
    guide = ast.get_docstring(conventions.trees()["django_fairque.engine"]) or ""
    queue = classes()["FairQueue"][1]
    changes = {
        node.name
        for node in queue.body
        if isinstance(node, ast.FunctionDef) and is_public(node.name) and "now" in parameters(node)
    }
    assert [name for name in sorted(changes - READS) if f"``{name}``" not in guide] == []


def test_each_class_with_the_now_parameter_documents_it() -> None:
    missing = []
    for member in public().values():
        if isinstance(member.node, ast.ClassDef):
            takes_now = any(
                isinstance(node, FUNCTIONS)
                and is_public(node.name)
                and "now" in parameters(node)
                and "``now``" not in (ast.get_docstring(node) or "")
                for node in member.node.body
            )
            if takes_now and "``now``" not in member.docstring:
                missing.append(member.name)
    assert missing == []
