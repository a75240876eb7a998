"""The Django app."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _

from django_fairque.tasks.transactions.open_transactions import watch_connections

EXTENSIONS = ("checks", "integrations")
"""Packages with a function ``register``, which is called when Django starts."""

watch_connections()


class DjangoFairqueConfig(AppConfig):
    """The Django app, which registers the system checks, and imports the modules ``tasks`` and ``events`` of all
    installed apps. No request is sent to a server.
    """

    name = "django_fairque"
    label = "django_fairque"
    verbose_name = _("Fair queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_fairque.engine.model.signature import DEFAULT_KEY
        from django_fairque.events import activation

        DEFAULT_KEY.read = _signing_key
        for name in EXTENSIONS:
            if find_spec(f"django_fairque.{name}") is not None:  # extensions may have been removed from the package
                import_module(f"django_fairque.{name}").register()
        autodiscover_modules("tasks")
        autodiscover_modules("events")
        activation.ready()


def _signing_key() -> str | None:
    # Imported at the first push, because the import would take a third of the time in which a small project starts.
    from django_fairque.conf.current import signing_key
    from django_fairque.engine.model.signature import DEFAULT_KEY

    DEFAULT_KEY.read = signing_key
    return signing_key()
