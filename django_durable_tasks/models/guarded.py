"""Tables that only the engine writes. Their rows depend on each other, so that a write past the
engine breaks them.

``save()``, ``create()``, ``update()`` and the like raise GuardedModelError, which names the right
method. The engine writes through ``queryset.unguarded()``. Fixtures, migrations and cascades are
not affected: Django writes them through ``save_base()``, historical models and the base manager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self, TypeVar, cast

from django.db import models

from django_durable_tasks.exceptions import GuardedModelError

M = TypeVar("M", bound=models.Model)
F = TypeVar("F", bound=Callable[..., Any])


def alters_data(method: F) -> F:
    """Decorator: prevents templates from calling this method."""
    method.alters_data = True  # type: ignore[attr-defined]
    return method


class GuardedModel(models.Model):
    """A row that cannot be saved or deleted by itself."""

    instead: ClassVar[str]
    """Sentence of the error: which methods create and change the rows."""

    class Meta:
        abstract = True

    @alters_data
    def save(self, *args: Any, **options: Any) -> NoReturn:
        """Raise GuardedModelError."""
        raise _refusal(type(self), "save()")

    @alters_data
    def delete(self, *args: Any, **options: Any) -> NoReturn:
        """Raise GuardedModelError."""
        raise _refusal(type(self), "delete()")


class GuardedQuerySet(models.QuerySet[M]):
    """Refuses to write unless it is ``unguarded()``."""

    _writable = False

    def unguarded(self) -> Self:
        """Return the same queryset for the engine, which may write through it."""
        queryset = self.all()
        queryset._writable = True
        return queryset

    def _clone(self) -> Self:
        clone = super()._clone()  # type: ignore[misc]
        clone._writable = self._writable
        return cast("Self", clone)

    @alters_data
    def create(self, **values: Any) -> M:
        """Insert one row."""
        self._check("create()")
        row = self.model(**values)
        row.save_base(force_insert=True, using=self.db)
        return row

    @alters_data
    def bulk_create(self, objs: Iterable[M], *args: Any, **options: Any) -> list[M]:
        """Insert rows."""
        self._check("bulk_create()")
        return super().bulk_create(objs, *args, **options)

    @alters_data
    def get_or_create(self, *args: Any, **values: Any) -> tuple[M, bool]:
        """Raise GuardedModelError: the engine inserts without a preceding query."""
        raise _refusal(self.model, "get_or_create()")

    @alters_data
    def update_or_create(self, *args: Any, **values: Any) -> tuple[M, bool]:
        """Raise GuardedModelError: the engine inserts without a preceding query."""
        raise _refusal(self.model, "update_or_create()")

    @alters_data
    def update(self, **values: Any) -> int:
        """Update the rows."""
        self._check("update()")
        return super().update(**values)

    @alters_data
    def bulk_update(self, objs: Iterable[M], *args: Any, **options: Any) -> int:
        """Update rows by their primary keys."""
        self._check("bulk_update()")
        return super().bulk_update(objs, *args, **options)

    @alters_data
    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete the rows."""
        self._check("delete()")
        return super().delete()

    delete.queryset_only = True  # type: ignore[attr-defined]

    def _check(self, method: str) -> None:
        if not self._writable:
            raise _refusal(self.model, method)


class TenantQuerySet(GuardedQuerySet[M]):
    """A guarded queryset of rows that belong to tenants."""

    def for_tenant(self, tenant: Any) -> Self:
        """Rows of this tenant (a Tenant or its id)."""
        return self.filter(tenant_id=getattr(tenant, "pk", tenant))


if TYPE_CHECKING:
    Q = TypeVar("Q", bound=models.QuerySet[Any])

    class ManagerOf(models.Manager[M], Generic[M, Q]):
        """What ``Manager.from_queryset`` makes of a queryset class, which only one type checker
        follows, with a plugin. Methods of the queryset that are not listed have no type.
        """

        def get_queryset(self) -> Q: ...
        def all(self) -> Q: ...
        def filter(self, *args: Any, **kwargs: Any) -> Q: ...
        def exclude(self, *args: Any, **kwargs: Any) -> Q: ...
        def order_by(self, *field_names: Any) -> Q: ...
        def using(self, alias: str | None) -> Q: ...
        def for_tenant(self, tenant: Any) -> Q: ...
        def __getattr__(self, name: str) -> Any: ...


def _refusal(model: type[models.Model], method: str) -> GuardedModelError:
    instead: str = getattr(model, "instead", "")
    return GuardedModelError(
        f"{model.__name__}: {method} is refused, because only the engine writes this table."
        f" {instead}"
    )
