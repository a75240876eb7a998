from __future__ import annotations

import uuid

from django.db import models

from django_fairque.events import EventQuerySet


class Customer(models.Model):
    slug = models.CharField(max_length=50)

    def __str__(self) -> str:
        return self.slug


class Tag(models.Model):
    name = models.CharField(max_length=50)

    def __str__(self) -> str:
        return self.name


class Dated(models.Model):
    on = models.DateField(null=True)

    class Meta:
        abstract = True


class Order(Dated):
    customer = models.ForeignKey(Customer, models.CASCADE, null=True)
    status = models.CharField(max_length=20, default="new")
    total = models.IntegerField(default=0)
    note = models.TextField(default="")
    data = models.JSONField(default=dict)
    token = models.UUIDField(default=uuid.uuid4)
    tags = models.ManyToManyField(Tag, related_name="orders")
    helpers = models.ManyToManyField(Customer, through="Help", related_name="helped")

    objects = EventQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"

    def __str__(self) -> str:
        return f"{self.pk}: {self.status}"


class Help(models.Model):
    """A through model of one's own."""

    order = models.ForeignKey(Order, models.CASCADE)
    customer = models.ForeignKey(Customer, models.CASCADE)
    hours = models.IntegerField(default=1)

    def __str__(self) -> str:
        return f"{self.order_id}, {self.customer_id}"


class RushOrder(Order):
    """The same table, another class."""

    class Meta:
        proxy = True


class GiftOrder(Order):
    """A model with multi-table inheritance: its own columns are in a second table."""

    card = models.CharField(max_length=100, default="")


class Labelled(models.Model):
    """A relation that each model which derives from this has for itself."""

    labels = models.ManyToManyField(Tag, related_name="%(class)ss")

    class Meta:
        abstract = True


class Printed(models.Model):
    printed_id = models.AutoField(primary_key=True)

    def __str__(self) -> str:
        return f"printed {self.printed_id}"


class Signed(models.Model):
    signed_id = models.AutoField(primary_key=True)
    signers = models.ManyToManyField(Tag, related_name="signed")

    def __str__(self) -> str:
        return f"signed {self.signed_id}"


class Letter(Printed, Signed):
    """A model with two parents: it has the keys of both, and the first one is its primary key."""

    def __str__(self) -> str:
        return f"letter {self.pk}"


class Album(Labelled):
    title = models.CharField(max_length=50, default="")

    def __str__(self) -> str:
        return self.title


class Document(models.Model):
    file = models.FileField(upload_to="documents")

    def __str__(self) -> str:
        return self.file.name or ""


class Country(models.Model):
    code = models.CharField(max_length=2, unique=True)

    def __str__(self) -> str:
        return self.code


class City(models.Model):
    country = models.ForeignKey(Country, models.CASCADE, to_field="code")

    def __str__(self) -> str:
        return f"{self.pk} in {self.country_id}"


class Person(models.Model):
    """Its relations hold both ways."""

    friends = models.ManyToManyField("self")
    partners = models.ManyToManyField("self", through="Partnership")

    def __str__(self) -> str:
        return f"person {self.pk}"


class Employee(Person):
    staff_id = models.AutoField(primary_key=True)
    person = models.OneToOneField(Person, models.CASCADE, parent_link=True)


class Partnership(models.Model):
    left = models.ForeignKey(Person, models.CASCADE, related_name="+")
    right = models.ForeignKey(Person, models.CASCADE, related_name="+")

    def __str__(self) -> str:
        return f"{self.left_id}, {self.right_id}"


class Seat(models.Model):
    """Its key has two parts, and one of them is no JSON."""

    pk = models.CompositePrimaryKey("hall", "number")
    hall = models.UUIDField()
    number = models.IntegerField()
    guest = models.CharField(max_length=50, default="")

    objects = EventQuerySet.as_manager()

    def __str__(self) -> str:
        return f"seat {self.number} of {self.hall}"
