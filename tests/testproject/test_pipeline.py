"""The library's pipeline: what it finds is what a plain computation finds, one file after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from library.loading import store_files
from library.models import Document
from library.outline import Outline, complexity_figures, import_figures, module_name, outline
from library.pipelines import package_pipeline
from library.sources import packages, read_source, standard_library

from django_fairque import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque import FairQueue

SOURCE = """
import os, json.decoder
from . import sibling
from ..other import thing
from json import encoder

class A:
    def plain(self):
        return 1

    async def branchy(self, x):
        if x and x > 1 or x == 7:
            return [y for y in x if y]
        try:
            while x:
                pass
        except ValueError:
            return 1 if x else 2

        def inner():
            for z in x:
                pass
"""


def test_an_outline_lists_the_functions_and_imports_of_a_file() -> None:
    found = outline("pack/sub/mod.py", SOURCE)
    assert found["functions"] == [("A.plain", 1, 8), ("A.branchy", 8, 11), ("A.branchy.inner", 2, 20)]
    assert {"os", "json.decoder", "pack.sub.sibling", "pack.other.thing", "json.encoder"} <= set(found["imports"])
    assert found["error"] is None


@pytest.mark.parametrize("text", ["def (", "\0", "x = " + 300 * "(" + ")"])
def test_the_outline_of_an_invalid_file_has_an_error(text: str) -> None:
    assert outline("a.py", text)["error"]


@pytest.mark.parametrize(("title", "name"), [("json/__init__.py", "json"), ("a/b.py", "a.b"), ("os.py", "os")])
def test_a_path_becomes_the_name_of_a_module(title: str, name: str) -> None:
    assert module_name(title) == name


def test_import_figures_count_cycles_and_imports() -> None:
    def module(name: str, *imports: str) -> Outline:
        return Outline(module=name, functions=[], imports=list(imports), error=None)

    figures = import_figures(
        [module("p", "p.a"), module("p.a", "p.b", "os"), module("p.b", "p.a", "sys"), module("p.c", "p.c", "p.nothing")]
    )
    assert figures == {"modules": 4, "edges": 3, "outside": 2, "most_imported": [("p.a", 2), ("p.b", 1)], "cycle": 2}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("package", ["json", "email", "concurrent"])
def test_a_package_report_equals_a_direct_computation(queue: FairQueue, package: str) -> None:
    root = standard_library()
    files = packages(root, [package])[package]
    run = package_pipeline(package, store_files(package, files, root)).enqueue()
    assert len(run) == len(files) + 3
    assert {result.state for result in run.results[-3:]} == {"deferred"}
    Worker([queue], burst=True, concurrency=1).run()
    assert run.state == "finished"
    plain = [outline(path.relative_to(root).as_posix(), read_source(path)) for path in files]
    report = run.results[-1].result()
    expected = {"package": package, "complexity": complexity_figures(plain), "imports": import_figures(plain)}
    assert report == as_json(expected)
    assert Document.objects.filter(owner=package).count() == len(files)
    assert queue.check_invariants() == []


def as_json(value: object) -> object:
    """Return the value that comes back from a queue: tuples become lists."""
    import json

    return json.loads(json.dumps(value))


@pytest.mark.slow  # the test takes 5 seconds
def test_the_demonstration_prints_pipeline_runs(demo: Callable[..., tuple[int, str, str]], queue: FairQueue) -> None:
    code, out, err = demo("--pipeline", "--packages", "json,wsgiref")
    assert (code, err) == (0, "")
    assert "in 2 runs" in out
    assert "json.decoder" in out
    assert "The most complex of" in out
    assert queue.check_invariants() == []


def test_options_of_two_demonstrations_at_once_are_refused(demo: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = demo("--pipeline", "--noisy", "5")
    assert code == 1
    assert "give one of them" in err
