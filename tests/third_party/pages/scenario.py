"""A program: django-mptt moves nodes and django-import-export imports rows; which events fired is printed as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import django
from django.core.management import call_command


def run() -> dict[str, Any]:
    from import_export.resources import modelresource_factory
    from tablib import Dataset

    from django_fairque import get_queue, task
    from django_fairque.checks import check_bulk_operations
    from django_fairque.events import changed, on_delete, on_save
    from tests.third_party.pages.models import Page, Product, WatchedPage, WatchedProduct

    call_command("migrate", run_syncdb=True, verbosity=0)

    @task(name="seen")
    def seen(*what: Any) -> None: ...

    trees: tuple[Any, ...] = (Page, WatchedPage)
    products: tuple[Any, ...] = (Product, WatchedProduct)
    for model in trees:
        on_save(model).enqueue(seen, lambda event: event.kind, "title")
        on_save(model, when=changed("parent")).enqueue(seen, lambda event: "moved", "title", "parent__title")
        on_save(model, when=changed("level")).enqueue(seen, lambda event: "level", "title", "level")
    for product in products:
        on_save(product).enqueue(seen, lambda event: event.kind, "name", "price")
        on_delete(product).enqueue(seen, lambda event: event.kind, "name", "price")

    def events() -> list[Any]:
        leases = get_queue().pop_batch(1000, "w")
        for lease in leases:
            get_queue().finish(lease)
        return sorted([lease.payload["args"] for lease in leases], key=json.dumps)

    found: dict[str, Any] = {"warned": [problem.msg for problem in check_bulk_operations()]}
    for model in trees:
        one, two = model.objects.create(title="one"), model.objects.create(title="two")
        child = model.objects.create(title="child", parent=two)
        model.objects.create(title="grandchild", parent=child)
        events()
        child = model.objects.get(title="child")
        child.move_to(model.objects.get(pk=one.pk))
        found[f"{model.__name__}: move_to"] = events()
        child.parent = model.objects.get(title="two")
        child.save()
        found[f"{model.__name__}: parent and save"] = events()
        child.move_to(None)
        found[f"{model.__name__}: move_to the root"] = events()
        model.objects.filter(title="grandchild").update(title="leaf")
        found[f"{model.__name__}: update"] = events()
        model.objects.rebuild()
        found[f"{model.__name__}: rebuild"] = events()

    for kind in products:
        for bulk in (False, True):
            resource = modelresource_factory(
                kind, meta_options={"use_bulk": bulk, "use_transactions": True, "fields": ["id", "name", "price"]}
            )()
            rows = [(None, "tea", 3), (None, "milk", 1)]
            name = f"{kind.__name__}: {'use_bulk' if bulk else 'row by row'}"
            resource.import_data(Dataset(*rows, headers=["id", "name", "price"]), dry_run=True)
            found[f"{name}, dry run"] = events()
            resource.import_data(Dataset(*rows, headers=["id", "name", "price"]), raise_errors=True)
            found[f"{name}, new"] = events()
            keys = list(kind.objects.order_by("pk").values_list("pk", flat=True))
            rows = [(keys[0], "tea", 4), (keys[1], "milk", 1)]
            resource.import_data(Dataset(*rows, headers=["id", "name", "price"]), raise_errors=True)
            found[f"{name}, again"] = events()
            kind.objects.all().delete()
            events()
    return found


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.third_party.pages.settings"
    django.setup()
    json.dump(run(), sys.stdout, indent=1)
