"""The models of each tenant."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order of one tenant."""

    number = models.CharField(max_length=100)
    objects: models.Manager[Order] = models.Manager()

    class Meta:
        app_label = "orders"

    def __str__(self) -> str:
        return self.number
