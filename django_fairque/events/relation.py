"""`Relation`: one many-to-many field that rules are about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .classes import classes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from django.db.models import ManyToManyField, Model


class Relation(NamedTuple):
    """A field that rules are about, of one class; an abstract model's is another one in each class that derives from it."""

    target: type[Model]
    """The rules' model."""
    model: type[Model]
    """Whose objects these are: the target, or what derives from it if that is abstract."""
    field: ManyToManyField[Any, Any]

    @property
    def through(self) -> type[Model]:
        through: type[Model] = self.field.remote_field.through
        return through

    @property
    def has_own_rows(self) -> bool:
        """Whether the project has declared the through model itself."""
        return not self.through._meta.auto_created

    @property
    def is_symmetrical(self) -> bool:
        """Whether it holds both ways: of two friends each has the other in the field."""
        return bool(self.field.remote_field.symmetrical)

    def only_ours(self, pks: Iterable[Any], using: str) -> list[Any]:
        """Those that are objects of the model: an inherited field's rows belong to parents that are none, too."""
        if self.model._meta.concrete_model is self.field.model._meta.concrete_model:
            return sorted(pks)
        # The rows name the parent by its key, which is another one than the model's own if that has several parents.
        parents = {f"{self.field.m2m_target_field_name()}__in": list(pks)}
        found = self.model._base_manager.using(using).filter(**parents)
        return list(found.order_by("pk").values_list("pk", flat=True))


def relations_of(target: type[Model], name: str) -> Iterator[Relation]:
    """The field of that name: one, or of an abstract model one for each class that has it as a field of its own."""
    if not target._meta.abstract:
        yield Relation(target, target, cast("Any", target._meta.get_field(name)))
        return
    for model in classes_of(target):
        for field in model._meta.local_many_to_many:
            if field.name == name and not model._meta.proxy:
                yield Relation(target, model, field)
