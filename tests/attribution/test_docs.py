"""The examples of docs/guides/attribution.md run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.middleware import own_callable
from tests.tasks.test_docs import names_after

from .conftest import MIDDLEWARE, users

if TYPE_CHECKING:
    import pytest
    from django.test import RequestFactory

    from django_fairque import FairQueue


def test_the_examples_run(queue: FairQueue, rf: RequestFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_after("attribution.md", "shop.tenants")
    assert MIDDLEWARE in names["MIDDLEWARE"]
    assert users(queue) == ["acme", "globex", "default"]
    monkeypatch.setattr("tests.attribution.urls.tenant_of", names["tenant_of"], raising=False)
    found = own_callable(names["FAIRQUE"]["REQUEST_USER"].replace("shop.tenants", "tests.attribution.urls"))
    assert found(rf.get("/", headers={"x-tenant": "acme"})) == "acme"
    assert found(rf.get("/")) is None
