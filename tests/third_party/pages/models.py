from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

from django_fairque.events import EventQuerySet, EventQuerySetMixin

if TYPE_CHECKING:
    MPTTModel = models.Model
    TreeManager = models.Manager[Any]
    TreeQuerySet = models.QuerySet[Any]
    TreeForeignKey = models.ForeignKey[Any, Any]
else:
    from mptt.managers import TreeManager
    from mptt.models import MPTTModel, TreeForeignKey
    from mptt.querysets import TreeQuerySet


class Page(MPTTModel):
    """With the manager that the package gives it."""

    title = models.CharField(max_length=50)
    parent = TreeForeignKey("self", models.CASCADE, null=True, related_name="children")

    def __str__(self) -> str:
        return self.title


class WatchedTreeQuerySet(EventQuerySetMixin, TreeQuerySet):
    """The example of docs/guides/model-events.md."""


class WatchedPage(MPTTModel):
    title = models.CharField(max_length=50)
    parent = TreeForeignKey("self", models.CASCADE, null=True, related_name="children")

    objects = TreeManager.from_queryset(WatchedTreeQuerySet)()

    def __str__(self) -> str:
        return self.title


class Product(models.Model):
    name = models.CharField(max_length=50)
    price = models.IntegerField(default=0)

    def __str__(self) -> str:
        return self.name


class WatchedProduct(models.Model):
    name = models.CharField(max_length=50)
    price = models.IntegerField(default=0)

    objects = EventQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name
