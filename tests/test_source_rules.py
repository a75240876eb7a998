"""Packages import only from the packages below them, files stay below 800 lines, and no exception is swallowed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import source_rules
from tests.tools.lua_names import misused_lua_names

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / source_rules.PACKAGE

RULES = [
    source_rules.misplaced_imports,
    source_rules.circular_imports,
    source_rules.registration_hooks,
    source_rules.fork_hooks,
    source_rules.long_files,
    source_rules.swallowed_exceptions,
    source_rules.shadowing_comprehensions,
    source_rules.unsorted_exports,
    source_rules.forbidden_lua,
    misused_lua_names,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_each_source_rule(rule: Callable[[Path], list[str]]) -> None:
    assert rule(PACKAGE) == []


@pytest.mark.thorough
def test_the_package_can_be_imported_before_django_is_set_up() -> None:
    program = "import django_fairque as f; [getattr(f, name) for name in f.__all__]"
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


class TestTheRulesThemselves:
    """Each on a small made-up tree, or a rule that never finds anything would look like a source without mistakes."""

    @pytest.fixture
    def package(self, tmp_path: Path) -> Path:
        return tmp_path / source_rules.PACKAGE

    @staticmethod
    def write(package: Path, name: str, text: str) -> None:
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    @pytest.mark.parametrize(
        "text",
        [
            "from django_fairque.worker.slots.pool import Pool",
            "from django_fairque.worker import slots",
            "import django_fairque.worker.slots.pool",
            "from ..slots import pool",
            "def later():\n    from django_fairque.worker.slots import pool",
        ],
    )
    def test_the_rules_find_folders_in_a_cycle(self, package: Path, text: str) -> None:
        self.write(package, "worker/slots/pool.py", "from django_fairque.worker.fetching.planner import Planner")
        self.write(package, "worker/fetching/planner.py", "from django_fairque.engine.queue import Queue")
        assert source_rules.circular_imports(package) == []
        self.write(package, "worker/fetching/thread.py", text)
        (found,) = source_rules.circular_imports(package)
        assert found.startswith("django_fairque/worker:1: its parts import each other: ")

    @pytest.mark.parametrize(
        ("file", "text"),
        [
            ("engine/queue.py", "from django_fairque.conf import models"),
            ("engine/queue.py", "import django_fairque.tasks.registry"),
            ("engine/queue.py", "from django_fairque import tasks"),
            ("engine/queue.py", "from django_fairque import task"),
            ("engine/queue.py", "from ..conf import models"),
            ("engine/queue.py", "from .. import conf"),
            ("engine/queue.py", "from django.conf import settings"),
            ("engine/queue.py", "def f():\n    import django"),
            ("engine/queue.py", "if TYPE_CHECKING:\n    from django_fairque.tasks import Registry"),
            ("embedded/start.py", "import django_redis"),
            ("conf/sources.py", "from django.conf import settings"),
            ("conf/sources.py", "from django_fairque.worker import loop"),
            ("worker/loop.py", "from django_fairque.monitoring import health"),
            ("tasks/__init__.py", "def f():\n    from django_fairque.worker import loop"),
            ("surprise/it.py", ""),
            ("surprise.py", ""),
        ],
    )
    def test_the_rules_find_an_upward_import(self, package: Path, file: str, text: str) -> None:
        self.write(package, file, text)
        (complaint,) = source_rules.misplaced_imports(package)
        assert complaint.startswith(f"{source_rules.PACKAGE}/{file}:{text.count(chr(10)) + 1}: ")

    @pytest.mark.parametrize(
        ("file", "text"),
        [
            ("engine/queue.py", "from django_fairque.engine import keys\nfrom . import scripts\nfrom .keys import P"),
            ("engine/queue.py", "import djangorestframework, redis, os.path"),
            ("embedded/start.py", "from ..engine.errors import FairQueueError"),
            ("conf/sources.py", "def read():\n    from django.conf import settings\n    return settings"),
            ("conf/sources.py", "if TYPE_CHECKING:\n    from django.conf import LazySettings"),
            (
                "worker/loop.py",
                "from django_fairque import signals\nfrom django_fairque.tasks import registry\nimport django",
            ),
            ("management/commands/fairque_worker.py", "from django_fairque.worker.supervisor import run"),
            ("__init__.py", "from django_fairque.tasks import task\nfrom .engine.models import Task"),
        ],
    )
    def test_the_rules_accept_a_downward_import(self, package: Path, file: str, text: str) -> None:
        self.write(package, file, text)
        assert source_rules.misplaced_imports(package) == []

    def test_the_rules_find_a_hook_of_the_engine(self, package: Path) -> None:
        hook = "_signer = None\ndef set_signer(signer):\n    global _signer\n    _signer = signer\n"
        self.write(package, "engine/model/signature.py", hook)
        self.write(package, "conf/current.py", hook)
        (complaint,) = source_rules.registration_hooks(package)
        assert complaint.startswith(f"{source_rules.PACKAGE}/engine/model/signature.py:3: ")

    def test_the_rules_find_a_fork_hook(self, package: Path) -> None:
        hook = "import os\nos.register_at_fork(after_in_child=print)\n"
        self.write(package, "conf/current.py", hook)
        self.write(package, "engine/model/ids.py", hook)
        (complaint,) = source_rules.fork_hooks(package)
        assert complaint.startswith(f"{source_rules.PACKAGE}/conf/current.py:2: ")

    def test_the_rules_find_a_long_file(self, package: Path) -> None:
        self.write(package, "engine/fits.py", "x = 1\n" * source_rules.MAX_LINES)
        self.write(package, "engine/lua/long.lua", "local x = 1\n" * (source_rules.MAX_LINES + 1))
        (complaint,) = source_rules.long_files(package)
        assert "long.lua" in complaint

    @pytest.mark.parametrize("handler", ["except Exception:", "except:", "except (KeyError, BaseException) as error:"])
    @pytest.mark.parametrize("body", ["pass", "...", "continue"])
    def test_the_rules_find_an_exception_that_is_ignored(self, package: Path, handler: str, body: str) -> None:
        self.write(package, "engine/a.py", f"for x in y:\n    try:\n        f()\n    {handler}\n        {body}\n")
        (complaint,) = source_rules.swallowed_exceptions(package)
        assert "a.py:4:" in complaint

    @pytest.mark.parametrize("handler", ["except KeyError:\n        pass", "except Exception:\n        log(1)"])
    def test_the_rules_accept_a_handled_exception(self, package: Path, handler: str) -> None:
        self.write(package, "engine/a.py", f"if x:\n    try:\n        f()\n    {handler}\n")
        assert source_rules.swallowed_exceptions(package) == []

    @pytest.mark.parametrize("names", [["b", "a"], ["a", "B"], ["A", "LIMIT"], ["a", "a"]])
    def test_the_rules_find_unsorted_exports(self, package: Path, names: list[str]) -> None:
        self.write(package, "engine/__init__.py", f"__all__ = {names}")
        assert len(source_rules.unsorted_exports(package)) == 1

    def test_the_rules_accept_sorted_exports(self, package: Path) -> None:
        self.write(package, "engine/__init__.py", "__all__ = ['LIMIT', 'DLQEntry', 'Discard', 'task']")
        assert source_rules.unsorted_exports(package) == []

    @pytest.mark.parametrize(
        "line",
        [
            "local r = redis.pcall('GET', KEYS[1])",
            "server.pcall('GET', KEYS[1])",
            "local t = cjson.decode(x)",
            "return cmsgpack.pack(t)",
            'redis.call("KEYS", "*")',
            "redis.call( 'scan', 0)",
        ],
    )
    def test_the_rules_find_forbidden_lua(self, package: Path, line: str) -> None:
        self.write(package, "engine/lua/commands/pop.lua", f"--[[ two\nlines ]]\n{line}")
        (complaint,) = source_rules.forbidden_lua(package)
        assert "pop.lua:3:" in complaint

    LIBRARIES = (
        ("lib/clock.lua", "local clock = {}\nlocal own = 1\nfunction clock.read() return own end"),
        (
            "lib/ring.lua",
            "-- include clock\nlocal ring = { SIZE = 1 }\nfunction ring.join(user) return clock.read(), user end",
        ),
    )

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("return ring.join()", "1: ring is neither a local nor an included library"),
            ("-- include clock\nreturn own", "2: own is neither a local nor an included library"),
            ("-- include ring\nreturn ring.leave()", "2: ring has no member leave"),
            ("-- include ring\nring.join = nil", "2: ring.join is set by another file"),
            ("-- include ring\nreturn 1", " ring is included and not used"),
            (
                "-- include ring\nlocal function f(ring) return ring.x end\nring.join(f)",
                "2: a local hides the library ring",
            ),
        ],
    )
    def test_misused_names_of_lua_are_found(self, package: Path, text: str, complaint: str) -> None:
        for name, library in self.LIBRARIES:
            self.write(package, f"engine/lua/{name}", library)
        self.write(package, "engine/lua/commands/pop.lua", "-- include clock ring\nreturn ring.join(ring.SIZE)")
        assert misused_lua_names(package) == []
        self.write(package, "engine/lua/commands/pop.lua", text)
        assert misused_lua_names(package) == [f"pop.lua:{complaint}"]

    def test_allowed_lua_is_not_reported(self, package: Path) -> None:
        comments = "#!lua\n-- no cjson, no redis.pcall\n--[==[ nor\nredis.call('KEYS') ]==]\n"
        lua = f"{comments}redis.call('ZSCORE', KEYS[1], 'keys')"
        self.write(package, "engine/lua/commands/pop.lua", lua)
        assert source_rules.forbidden_lua(package) == []
