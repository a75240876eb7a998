"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class DjangoFairqueConfig(AppConfig):
    """Registers the system checks and finds the ``tasks`` modules of all installed apps. Asks no server anything."""

    name = "django_fairque"
    label = "django_fairque"
    verbose_name = "Fair queue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_fairque import checks

        checks.register()
        autodiscover_modules("tasks")
