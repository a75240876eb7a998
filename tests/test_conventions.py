"""The conventions of layout and names, held by counts that may only fall.

When a count falls, lower its limit here: each test fails if its limit is higher than what is found, so that no gain is lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import conventions

if TYPE_CHECKING:
    from redis import Redis

    from tests.servers import Server

ROOT = Path(__file__).parent.parent
MOST_MODULES = 15
"""Per folder."""
FOLDER_LIMITS = {
    "django_fairque/admin/pages": 19,
    "django_fairque/conf": 7,
    "django_fairque/embedded": 7,
    "django_fairque/engine": 0,
    "django_fairque/engine/model": 18,
    "django_fairque/management/commands": 24,
    "django_fairque/tasks": 16,
    "django_fairque/worker": 2,
}
"""Folders with a limit of their own: those that have more today, those whose modules are in folders by topic, and the commands,
which Django finds only there."""
IMPORT_CYCLES, MODULES_IN_CYCLES = 0, 0
CLASSES_WITH_TWO_MEANINGS = 0
CONSTANTS_WITH_TWO_MEANINGS = 0
DIVIDED_CLASSES: set[str] = set()
"""Classes that exist only to be extended by a single other one, in another file."""
SINGLE_EXTENSIONS = {"FairqueBackend", "Stop", "UserSource"}
"""Classes that a single other one extends for a reason: they are used by themselves, too, or are named in settings."""
BANNED_IDENTIFIERS = 0
BANNED_NAMES_IN_TESTS = {
    "tests/conf": 30,
}
"""At most. Other folders have none: remove a folder here when its last one is renamed."""
BANNED_PHRASES_IN_THE_PACKAGE, BANNED_PHRASES_IN_THE_DOCUMENTATION = 14, 5
BANNED_PHRASES_IN_TESTS = 127
"""At most, with those in .ci. Lower it when you have removed some."""
ENQUEUE = {"files": 18, "functions": 68, "depth": 11}
POP = {"files": 8, "functions": 31, "depth": 8}
RUN = {"files": 9, "functions": 37, "depth": 9}
FINISH = {"files": 10, "functions": 37, "depth": 8}
"""Limits of a second call: only code of the package in the calling thread counts. Ten per cent more are allowed. Python
before 3.12 counts a comprehension as a function."""


def hold(found: int, limit: int, what: str) -> None:
    assert found <= limit, f"{what}: {found}, more than {limit}"
    assert found == limit, f"{what}: {found}; lower the limit of {limit} in tests/test_conventions.py"


@pytest.mark.thorough
def test_no_more_modules_import_each_other_in_a_circle() -> None:
    cycles = conventions.import_cycles()
    hold(len(cycles), IMPORT_CYCLES, f"import cycles ({'; '.join(map(conventions.names, cycles))})")
    hold(sum(map(len, cycles)), MODULES_IN_CYCLES, "modules in import cycles")


def test_a_folder_has_few_modules() -> None:
    counts = conventions.modules_per_folder()
    larger = {folder: count for folder, count in counts.items() if count > MOST_MODULES}
    assert set(larger) <= set(FOLDER_LIMITS), f"more than {MOST_MODULES} modules: {conventions.names(larger)}"
    for folder, limit in FOLDER_LIMITS.items():
        hold(counts.get(folder, 0), limit, folder)


def test_a_class_name_is_defined_in_one_module() -> None:
    found = conventions.classes_with_two_meanings()
    hold(len(found), CLASSES_WITH_TWO_MEANINGS, f"names of classes in several modules ({conventions.names(found)})")


def test_a_constant_is_defined_in_one_module() -> None:
    found = conventions.constants_with_two_meanings()
    hold(len(found), CONSTANTS_WITH_TWO_MEANINGS, f"constants in several modules ({conventions.names(found)})")


def test_all_methods_of_a_class_are_in_one_file() -> None:
    assert set(conventions.divided_classes()) - SINGLE_EXTENSIONS == DIVIDED_CLASSES


def test_identifiers_are_plain_words() -> None:
    found = conventions.banned_identifiers()
    hold(sum(found.values()), BANNED_IDENTIFIERS, f"banned words in identifiers ({dict(found)})")


@pytest.mark.thorough
def test_a_variable_in_tests_is_named_after_its_value() -> None:
    found = conventions.banned_names_outside_the_package()
    assert found <= Counter(BANNED_NAMES_IN_TESTS), f"variables named `each`: {dict(found)}"


@pytest.mark.thorough
def test_texts_use_plain_words() -> None:
    for folder, limit in (
        (conventions.PACKAGE, BANNED_PHRASES_IN_THE_PACKAGE),
        (conventions.DOCS, BANNED_PHRASES_IN_THE_DOCUMENTATION),
    ):
        found = conventions.banned_phrases(folder)
        hold(sum(found.values()), limit, f"banned words in {folder.name} ({dict(found.most_common())})")


def test_texts_of_tests_use_plain_words() -> None:
    found = conventions.banned_phrases(conventions.TESTS) + conventions.banned_phrases(conventions.CI)
    assert found.total() <= BANNED_PHRASES_IN_TESTS, (
        f"{found.total()} banned words in tests: {dict(found.most_common())}"
    )


def test_pages_for_users_use_plain_words() -> None:
    found = {page.name: dict(conventions.banned_phrases_in(page)) for page in conventions.user_pages()}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


def test_an_enqueue_a_pop_a_run_and_a_finish_pass_few_files_and_functions(server: Server, redis: Redis) -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.worker.project.settings", "TEST_SERVER": server.url}
    program = [sys.executable, "-m", "tests.tools.passed_functions"]
    done = subprocess.run(program, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for what, limits in {"enqueue": ENQUEUE, "pop": POP, "run": RUN, "finish": FINISH}.items():
        for measure, limit in limits.items():
            assert found[what][measure] <= round(1.1 * limit), (
                f"{what}: {found[what][measure]} {measure}, over 110 % of {limit}"
            )
