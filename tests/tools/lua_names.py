"""Resolve the names in a file of Lua 5.1: its locals, and the uses of names that no local declares."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from django_fairque.engine.model.ids import split_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#![^\n]*|--\[(?P<level>=*)\[.*?\](?P=level)\]|--[^\n]*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\[\[.*?\]\])
    |(?P<sign>\.\.\.|\.\.|[=~<>]=|[-+*/%^\#=<>(){}\[\];:,.])""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset(
    split_names("""
    and break do else elseif end false for function if in local nil not or repeat return then true until while
""")
)
_BINARY = frozenset("+ - * / % ^ .. == ~= < > <= >= and or".split())  # noqa: SIM905


class Token(NamedTuple):
    kind: str
    text: str
    start: int


@dataclass(frozen=True)
class Declaration:
    """A local variable or parameter."""

    name: str
    start: int
    depth: int
    """The number of blocks around it."""


@dataclass(frozen=True)
class Use:
    """A use of a name: ``member`` is the field that is read, called or set behind a dot."""

    name: str
    member: str | None
    start: int
    declaration: Declaration | None
    is_set: bool = False
    """Whether the member is defined or assigned here."""


@dataclass
class Names:
    """The names of one file."""

    source: str
    uses: list[Use] = field(default_factory=list)
    declarations: list[Declaration] = field(default_factory=list)

    def line_of(self, start: int) -> int:
        """Return the number of the line of this character."""
        return self.source.count("\n", 0, start) + 1

    @property
    def free(self) -> list[Use]:
        """The uses of names that no local of the file declares."""
        return [use for use in self.uses if use.declaration is None]


def resolve(source: str) -> Names:
    """Resolve the names in a file.

    Raises:
        SyntaxError: the file is no Lua.
    """
    parser = _Parser(source)
    parser.block()
    if parser.token.kind != "end of file":
        raise parser.error("end of file")
    return parser.names


def _tokens(source: str) -> list[Token]:
    tokens, at = [], 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise SyntaxError(f"no Lua at {source[at : at + 20]!r}")
        at = match.end()
        if match["name"]:
            tokens.append(Token("keyword" if match["name"] in _KEYWORDS else "name", match["name"], match.start()))
        elif match["space"] is None:
            tokens.append(Token("sign" if match["sign"] else "value", match[0], match.start()))
    return [*tokens, Token("end of file", "", len(source))]


class _Parser:
    def __init__(self, source: str) -> None:
        self.names = Names(source)
        self._tokens = _tokens(source)
        self._at = 0
        self._scopes: list[dict[str, Declaration]] = []

    @property
    def token(self) -> Token:
        return self._tokens[self._at]

    def error(self, expected: str) -> SyntaxError:
        line = self.names.line_of(self.token.start)
        return SyntaxError(f"line {line}: expected {expected}, found {self.token.text!r}")

    def _accept(self, *texts: str) -> bool:
        if self.token.text in texts and self.token.kind != "value":
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self.error(text)

    def _name(self) -> Token:
        token = self.token
        if token.kind != "name":
            raise self.error("a name")
        self._at += 1
        return token

    def _name_list(self) -> list[Token]:
        names = [self._name()]
        while self._accept(","):
            names.append(self._name())
        return names

    def _declare(self, names: list[Token]) -> None:
        for token in names:
            declaration = Declaration(token.text, token.start, len(self._scopes))
            self._scopes[-1][token.text] = declaration
            self.names.declarations.append(declaration)

    def _use(self, token: Token, member: str | None = None, *, is_set: bool = False) -> None:
        declaration = next((scope[token.text] for scope in reversed(self._scopes) if token.text in scope), None)
        self.names.uses.append(Use(token.text, member, token.start, declaration, is_set))

    def block(self, declared: list[Token] | None = None, end: str | None = None) -> None:
        """Parse a block with these variables, and its last word."""
        self._scopes.append({})
        self._declare(declared or [])
        while self.token.text not in ("end", "else", "elseif", "until", ""):
            self._statement()
        if end:
            self._expect(end)
            if end == "until":
                self._expression()
        self._scopes.pop()

    def _statement(self) -> None:
        if self._accept("if", "while"):
            self._conditional()
        elif self._accept("for"):
            self._for()
        elif self._accept("do"):
            self.block(end="end")
        elif self._accept("repeat"):
            self.block(end="until")
        elif self._accept("local"):
            self._local()
        elif self._accept("function"):
            self._function_statement()
        elif self._accept("return"):
            if self.token.text not in ("end", "else", "elseif", "until", ";", ""):
                self._expressions()
        elif not self._accept("break", ";"):
            self._assignment_or_call()

    def _conditional(self) -> None:
        self._expression()
        if self._accept("do"):
            return self.block(end="end")
        self._expect("then")
        self.block()
        if self._accept("elseif"):
            return self._conditional()
        if self._accept("else"):
            return self.block(end="end")
        return self._expect("end")

    def _for(self) -> None:
        names = self._name_list()
        if not self._accept("=", "in"):
            raise self.error("= or in")
        self._expressions()
        self._expect("do")
        self.block(names, "end")

    def _local(self) -> None:
        if self._accept("function"):
            self._declare([self._name()])
            return self._function_body()
        names = self._name_list()
        if self._accept("="):
            self._expressions()
        return self._declare(names)

    def _function_statement(self) -> None:
        token, members = self._name(), []
        while self._accept(".", ":"):
            members.append(self._name().text)
        self._use(token, members[0] if members else None, is_set=len(members) == 1)
        self._function_body()

    def _function_body(self) -> None:
        self._expect("(")
        parameters = []
        while not self._accept(")"):
            if not self._accept("...", ","):
                parameters.append(self._name())
        self.block(parameters, "end")

    def _assignment_or_call(self) -> None:
        targets = [self._suffixed()]
        while self._accept(","):
            targets.append(self._suffixed())
        if self._accept("="):
            for at in targets:
                if at is not None:
                    use = self.names.uses[at]
                    self.names.uses[at] = Use(use.name, use.member, use.start, use.declaration, is_set=True)
            self._expressions()

    def _expressions(self) -> None:
        self._expression()
        while self._accept(","):
            self._expression()

    def _expression(self) -> None:
        while self._accept("not", "-", "#"):
            pass
        if self.token.kind == "value" or self.token.text in ("nil", "true", "false", "..."):
            self._at += 1
        elif self.token.text == "{":
            self._table()
        elif self._accept("function"):
            self._function_body()
        else:
            self._suffixed()
        if self.token.kind != "value" and self.token.text in _BINARY:
            self._at += 1
            self._expression()

    def _suffixed(self) -> int | None:
        """Parse a name or a call. Return the index of its use if it is a name, or a name with one member."""
        target = None
        if self._accept("("):
            self._expression()
            self._expect(")")
        else:
            token, member = self._name(), None
            if self._accept("."):
                member = self._name().text
            target = len(self.names.uses)
            self._use(token, member)
        while True:
            if self._accept("."):
                self._name()
            elif self._accept("["):
                self._expression()
                self._expect("]")
            elif self._accept(":"):
                self._name()
                self._arguments()
            elif self.token.text in ("(", "{") or (self.token.kind == "value" and self.token.text[0] in "'\"["):
                self._arguments()
            else:
                return target
            target = None

    def _arguments(self) -> None:
        if self.token.text == "{":
            self._table()
        elif self._accept("("):
            if not self._accept(")"):
                self._expressions()
                self._expect(")")
        else:
            self._at += 1

    def _table(self) -> None:
        self._expect("{")
        while not self._accept("}"):
            if self._accept("["):
                self._expression()
                self._expect("]")
                self._expect("=")
            elif self.token.kind == "name" and self._tokens[self._at + 1].text == "=":
                self._at += 2
            self._expression()
            self._accept(",", ";")


LANGUAGE = frozenset(
    split_names("""
    error ipairs math next pairs redis select string struct table tonumber tostring type unpack
""")
)
LOADER = frozenset(
    split_names("""
    ARGV FIRST_ARG K KEYS P each_call frame
""")
)
"""Names that the loader puts in front of each command and library (`django_fairque.engine.scripting.scripts`)."""
INCLUDED_ALWAYS = "clock"
"""The library that reads the counters and the time at each call, also of a command that uses neither."""
_INCLUDES = re.compile(r"^-- include (.+)$", re.MULTILINE)


def misused_lua_names(package: Path) -> list[str]:
    """Return the uses of names that a file of Lua did not define or include, and the includes that it does not use.

    Each library is one table, which only its own file changes.
    """
    files = {file: resolve(file.read_text()) for file in sorted((package / "engine" / "lua").rglob("*.lua"))}
    members = {file.stem: _members(file.stem, names) for file, names in files.items() if file.parent.name == "lib"}
    found = []
    for file, names in files.items():
        own = file.stem if file.parent.name == "lib" else None
        found += [f"{file.name}:{complaint}" for complaint in _complaints(names, own, members)]
    return found


def _members(library: str, names: Names) -> set[str | None]:
    """Return the members of a library: those that its file sets, and the fields of the table that it begins with."""
    table = re.search(rf"^local {library} = \{{(.*?)\}}$", names.source, re.MULTILINE | re.DOTALL)
    fields = re.findall(r"(\w+) =", table[1]) if table else []
    return {*fields, *(use.member for use in names.uses if use.name == library and use.is_set)}


def _complaints(names: Names, own: str | None, members: dict[str, set[str | None]]) -> Iterator[str]:
    line = _INCLUDES.search(names.source)
    includes = set(line[1].split()) if line else set()
    for name in sorted(includes - {use.name for use in names.free} - ({INCLUDED_ALWAYS} if own is None else set())):
        yield f" {name} is included and not used"
    for declaration in names.declarations:
        if declaration.name in includes or (declaration.name == own and declaration.depth > 1):
            yield f"{names.line_of(declaration.start)}: a local hides the library {declaration.name}"
    for use in names.uses:
        number = names.line_of(use.start)
        is_own = use.name == own
        if use.declaration is None and use.name not in LANGUAGE | LOADER | includes:
            yield f"{number}: {use.name} is neither a local nor an included library"
        elif (is_own or use.declaration is None) and use.name in members:
            if use.member not in members[use.name] and not (is_own and use.member is None):
                yield f"{number}: {use.name} has no member {use.member}"
            elif use.is_set and not is_own:
                yield f"{number}: {use.name}.{use.member} is set by another file"
