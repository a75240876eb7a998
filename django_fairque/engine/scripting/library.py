"""All commands as one library of functions, in which what they include is there once.

Includes form a tree, as they stand in the same order in all commands: a command is written where the path of its own includes
ends, and sees what is on that path. Lua allows 200 local names at once, and those of a branch are gone behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_FRAME = """#!lua name={name}
local KEYS, ARGV, P, K
local frame, each_call = {{ calls = 0, seen = 0, since = 0 }}, nil
do

local path, marks = {{}}, {{}} -- what is run at each call of the commands written here; how much of it, outside of each branch
function each_call(init) path[#path + 1] = init end
function frame.enter() marks[#marks + 1] = #path end
function frame.leave()
  while #path > marks[#marks] do path[#path] = nil end
  marks[#marks] = nil
end

function frame.command(name, flags, read_keys, main)
  local inits, named = {{}}, {{}} -- a table of keys for each: none sees another's
  for i = 1, #path do inits[i] = path[i] end
  redis.register_function{{
    function_name = name,
    callback = function(keys, args)
      KEYS, ARGV, K = keys, args, named
      frame.calls = frame.calls + 1
      read_keys()
      for i = 1, #inits do inits[i]() end
      return main()
    end,
    flags = flags,
  }}
end

redis.register_function{{
  function_name = '{idle}',
  callback = function(_, args)
    local now = tonumber(args[1] or redis.call('TIME')[1])
    if frame.since == 0 or frame.calls ~= frame.seen then frame.seen, frame.since = frame.calls, now end
    return now - frame.since
  end,
  flags = {{ 'no-writes' }},
}}

end
{tree}
"""

IDLE = "{name}_idle"
"""The name of a library's function that returns for how many seconds none of the others was called, as far as it knows: it
compares with the last time it was asked. A test gives it the time, in seconds since the epoch."""

_COMMAND = """frame.command({name!r}, {{ {flags} }}, function()
  {read_keys}
end, function()
{body}
end)"""


@dataclass(frozen=True)
class Command:
    """What is to be a function: its name and flags, the Lua that names its keys, its own code, and what that includes."""

    name: str
    flags: Sequence[str]
    read_keys: str
    body: str
    includes: Sequence[str]

    def registered(self) -> str:
        """The Lua that makes it one."""
        flags = ", ".join(map(repr, self.flags))
        return _COMMAND.format(name=self.name, flags=flags, read_keys=self.read_keys, body=self.body)


@dataclass
class _Branch:
    """What follows an include: the commands that need no more, and the includes behind it."""

    commands: list[Command] = field(default_factory=list)
    behind: dict[str, _Branch] = field(default_factory=dict)

    def lines(self, includes: Mapping[str, str]) -> Iterator[str]:
        yield from (command.registered() for command in self.commands)
        for name, branch in self.behind.items():
            yield "do frame.enter()"
            yield includes[name]
            yield from branch.lines(includes)
            yield "frame.leave() end"


def assemble(name: str, commands: Iterable[Command], includes: Mapping[str, str]) -> str:
    """The library's source; ``includes`` are the texts of those that the commands name."""
    root = _Branch()
    for command in commands:
        branch = root
        for include in command.includes:
            branch = branch.behind.setdefault(include, _Branch())
        branch.commands.append(command)
    return _FRAME.format(name=name, idle=IDLE.format(name=name), tree="\n".join(root.lines(includes)))
