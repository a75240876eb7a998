"""A program: tasks of two tenants are enqueued in their schemas, a worker runs them, and what each found is printed as JSON.

The middleware is the code of docs/guides/wagtail-and-django-tenants.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from types import ModuleType
from typing import Any

import django
import django.db
from asgiref.sync import sync_to_async
from django.core.management import call_command

from tests.docs.blocks import DOCS
from tests.docs.examples import examples

TENANTS = ("acme", "globex")


def load_page() -> dict[str, Any]:
    """Run the examples of the page as the module ``shop.middleware``, and return their names."""
    module: Any = ModuleType("shop.middleware")
    module.FAIRQUE = {}
    sys.modules |= {"shop": ModuleType("shop"), "shop.middleware": module}
    for example in examples(DOCS / "guides" / "wagtail-and-django-tenants.md", "python"):
        if "TASKS" in example:  # the block has the settings for Wagtail
            continue
        exec(compile(example, "docs/guides/wagtail-and-django-tenants.md", "exec"), module.__dict__)
    names: dict[str, Any] = module.__dict__
    return names


def create_tenants() -> None:
    from django.db import connection
    from django_tenants.utils import schema_context

    from tests.third_party.tenants.customers.models import Client
    from tests.third_party.tenants.orders.models import Order

    call_command("migrate_schemas", shared=True, run_syncdb=True, verbosity=0)
    for name in TENANTS:
        Client.objects.create(schema_name=name, name=name)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE SCHEMA {name}")
        call_command("migrate_schemas", schema_name=name, run_syncdb=True, verbosity=0)
        with schema_context(name):
            Order.objects.create(number=f"order of {name}")


def run() -> dict[str, Any]:
    from django.db import transaction
    from django_tenants.utils import schema_context

    from django_fairque import Worker, get_queue, task
    from tests.third_party.tenants.orders.models import Order

    names = load_page()
    connection: Any = django.db.connection  # the connection class of django-tenants
    create_tenants()

    def numbers() -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_schema()")
            schema: str = cursor.fetchone()[0]
        return [schema] if schema == "public" else [schema, *Order.objects.values_list("number", flat=True)]

    @task(name="plain")
    def plain() -> list[str]:
        return numbers()

    @task(name="coroutine")
    async def coroutine() -> list[str]:
        found = await sync_to_async(numbers)()
        return [*found, *[order.number async for order in Order.objects.all()]] if found != ["public"] else found

    @task(name="many", batch=10, max_retries=0)
    def many(items: list[int]) -> list[Any]:
        return [numbers() for _ in items]

    @task(name="nested")
    def nested() -> str:
        return plain.enqueue().id

    results: dict[str, Any] = {}
    for name in TENANTS:
        with schema_context(name):
            with transaction.atomic():
                results[f"{name} in a transaction"] = plain.enqueue()
                connection.set_schema_to_public()
            with schema_context(name):
                results[f"{name} coroutine"] = coroutine.enqueue()
                results[f"{name} nested"] = nested.enqueue()
    with schema_context("acme"):
        results["acme batch"] = many.enqueue(1)
    results["public"] = plain.enqueue()
    results["public coroutine"] = coroutine.enqueue()
    names["invoices"].enqueue()
    Worker(burst=True, concurrency=1).run()
    found = {name: result.result() for name, result in results.items()}
    for name in TENANTS:
        found[f"{name} nested"] = get_queue().get_task(found[f"{name} nested"]).result
    found["invoices"] = sorted(
        (task.user_id, task.payload["about"]["headers"]["schema"])
        for task in get_queue().tasks("finished").items
        if task.name.endswith("invoices_of_tenant")
    )
    mixed = []
    for name in TENANTS:
        with schema_context(name):
            mixed.append(many.using(user_id="both").enqueue(1))
    Worker(burst=True, concurrency=1).run()
    found["mixed"] = [document.errors[-1].error for document in mixed]
    return found


def run_in_the_loop() -> dict[str, Any]:
    """From a coroutine, in whose thread for synchronous code the schema was set."""
    from django_tenants.utils import schema_context

    from django_fairque import Worker, get_queue
    from django_fairque.tasks import registry

    async def send() -> str:
        def enter() -> None:
            manager.__enter__()

        manager = schema_context("acme")
        await sync_to_async(enter)()
        sent = await registry.get("plain").aenqueue()
        await sync_to_async(manager.__exit__)(None, None, None)
        return sent.id

    sent = asyncio.run(send())
    Worker(burst=True, concurrency=1).run()
    return {"from a coroutine": get_queue().get_task(sent).result}


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.third_party.tenants.settings"
    django.setup()
    json.dump({**run(), **run_in_the_loop()}, sys.stdout)


if __name__ == "__main__":
    main()
