"""A JSON column that is encrypted in the database if ENCRYPTION_KEYS is set.

The attribute of an instance is always the plain value. It is decrypted when it is read first, and
this raises EncryptionKeyMissing or DecryptionFailed. ``values()`` and ``values_list()`` return
EncryptedValue objects. An insert encrypts; an UPDATE of a queryset writes EncryptedValue objects,
which ``stored_columns`` returns.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.query_utils import DeferredAttribute

from django_durable_tasks.choices import DEFAULT_TENANT_ID
from django_durable_tasks.encryption import (
    MIXED,
    EncryptedValue,
    StorageLocation,
    decrypted,
    encrypted,
    stored_value,
)


class DecryptingAttribute(DeferredAttribute):
    """Decrypts the value of an instance when it is read first."""

    def __get__(self, instance: Any, cls: Any = None) -> Any:
        if instance is None:
            return self
        name = self.field.attname
        value = instance.__dict__.get(name)
        if name not in instance.__dict__:
            value = super().__get__(instance, cls)
        if isinstance(value, EncryptedValue):
            value = decrypted(value, place_of(instance, name))
            instance.__dict__[name] = value
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.field.attname] = value


TASK_TABLE = "durable_tasks_task"


def place_of(row: Any, column: str) -> StorageLocation:
    """Return where the column of a row is stored; for a copy, where its original is."""
    table, key = getattr(row, "encryption_place", (row._meta.db_table, row.pk))
    # Before its insert, a row without a tenant has the default of the database.
    tenant_id = row.tenant_id if isinstance(row.tenant_id, int) else DEFAULT_TENANT_ID
    return StorageLocation(tenant_id, table, column, str(key))


class EncryptedJSONField(models.JSONField):
    """A JSON field of a model with the column ``encryption_key``."""

    descriptor_class = DecryptingAttribute

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return the plain value, or an EncryptedValue."""
        found = super().from_db_value(value, expression, connection)
        return stored_value(found) or found

    def pre_save(self, model_instance: Any, add: bool) -> Any:
        """Return the value to insert. One that was read and never decrypted is stored as it is."""
        value = model_instance.__dict__.get(self.attname)
        if isinstance(value, EncryptedValue):
            return value
        return encrypted(
            getattr(model_instance, self.attname), place_of(model_instance, self.attname)
        )

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """Return the parameter of a statement."""
        plain = dict(value.envelope) if isinstance(value, EncryptedValue) else value
        return super().get_db_prep_value(plain, connection, prepared)


def undecrypted(row: Any, column: str) -> Any:
    """Return the EncryptedValue that was read, or the plain value; for copies."""
    value = row.__dict__.get(column)
    return value if isinstance(value, EncryptedValue) else getattr(row, column)


def stored_columns(row: Any) -> dict[str, Any]:
    """Return the encrypted columns of a row, and its key id, as an UPDATE writes them.

    A value that was not decrypted keeps its key, for example in a process without it.
    """
    found: dict[str, Any] = {
        spec.attname: spec.pre_save(row, add=False)
        for spec in row._meta.concrete_fields
        if isinstance(spec, EncryptedJSONField)
    }
    keys = {value.key_id for value in found.values() if isinstance(value, EncryptedValue)}
    found["encryption_key"] = keys.pop() if len(keys) == 1 else MIXED if keys else None
    return found
