"""Columns, indexes and expressions that behave alike on every database."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models.lookups import IContains, In
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

# A column of instants: read and written in UTC, whatever USE_TZ is.
#
# With ``USE_TZ = False`` Django reads and writes wall times of TIME_ZONE without a zone. Such a
# time names two instants during the hour in which clocks are set back. The models of this package
# use this field, so that a project can have either setting. Django gives a Value of a time, and a
# sum of an instant and a duration, its own DateTimeField: write ``constant(value)``, and wrap the
# sum in an ExpressionWrapper with this field.


# The plugin of mypy derives the types of columns from Django's own field classes.
if TYPE_CHECKING:
    InstantField = models.DateTimeField
else:

    class InstantField(models.DateTimeField):
        """A DateTimeField whose values are aware and in UTC."""

        def get_prep_value(self, value: Any) -> Any:
            if settings.USE_TZ:
                return super().get_prep_value(value)
            converted = self.to_python(value)
            return _of_project(converted) if isinstance(converted, datetime) else converted

        def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
            value = value if prepared else self.get_prep_value(value)
            # The driver of PostgreSQL sends the zone. The other databases store UTC without it, and
            # Django refuses an aware time for them.
            if (
                not settings.USE_TZ
                and connection.vendor != "postgresql"
                and isinstance(value, datetime)
            ):
                value = _of_project(value).replace(tzinfo=None)
            return super().get_db_prep_value(value, connection, prepared=True)

        def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
            return value if value is None else instant(value, connection)


_SENTENCE = 500
"""Characters of a column for what a person says: reasons, comments, descriptions."""


def is_free_text(column: models.Field[Any, Any]) -> bool:
    """Return whether people, programs or exceptions write sentences into this column, which may
    quote a secret. Every interface masks it.
    """
    if isinstance(column, models.CharField):
        return not column.choices and (column.max_length or 0) >= _SENTENCE
    return isinstance(column, models.TextField)


def choices_of(values: Iterable[StrEnum]) -> list[tuple[str, str]]:
    """Return the values of an enum as ``choices``, each shown as it is stored."""
    return [(choice.value, choice.value) for choice in values]


def choice_field(
    label: Any, values: Iterable[StrEnum], max_length: int, **options: Any
) -> models.CharField[str, str]:
    """Return the column of a value of an enum, which is shown as it is stored."""
    choices = choices_of(values)
    return ExactCharField(label, max_length=max_length, choices=choices, **options)


UNCONSTRAINED: Any = {"db_index": False, "db_constraint": False}
"""The options of foreign keys without a constraint, so that no INSERT locks the row that they
name, and without an index of their own.
"""


def constant(value: Any) -> Any:
    """Return an instant as an expression of a statement, for Case and functions; expressions are
    returned as they are.
    """
    return models.Value(value, InstantField()) if isinstance(value, datetime) else value


def instant(value: datetime, connection: Any) -> datetime:
    """Return a time that a statement of this connection returned, aware and in UTC."""
    if value.tzinfo is not None:
        return value
    if connection.vendor == "postgresql":
        # Without USE_TZ Django removes the zone of the session, and keeps ``fold``.
        return _of_project(value)
    return value.replace(tzinfo=UTC)


def _of_project(value: datetime) -> datetime:
    """Return a time in UTC; one without a zone is a wall time of TIME_ZONE."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=ZoneInfo(settings.TIME_ZONE))
    return value.astimezone(UTC)


# A text column whose values are equal only if they are the same characters, on every database.
#
# PostgreSQL and SQLite compare texts byte by byte. The default collations of MySQL and MariaDB
# ignore case, accents and trailing blanks, so two keys of a project would be one key.


# MariaDB's utf8mb4_bin ignores trailing blanks, and MySQL has no utf8mb4_nopad_bin.
_OF_MARIADB, _OF_MYSQL = "utf8mb4_nopad_bin", "utf8mb4_0900_bin"
# Of both servers. Searches in the admin ignore case, as on the other databases.
_IGNORES_CASE = "utf8mb4_general_ci"


def exact_collation(connection: Any) -> str | None:
    """Return the collation of these columns; None if that of the database compares exactly."""
    if connection.vendor != "mysql":
        return None
    return _OF_MARIADB if connection.mysql_is_mariadb else _OF_MYSQL


# The plugin of mypy derives the types of columns from Django's own field classes.
if TYPE_CHECKING:
    ExactCharField = models.CharField
else:

    class _LikeCharField(type):
        """Lets an expression combine the field with other texts, as Case(default=Value("")) does.

        Django resolves the type of an expression by isinstance() over the classes of its parts.
        """

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, models.CharField)

    class ExactCharField(models.CharField, metaclass=_LikeCharField):
        """The CharField of all models of this package: names, keys and other short texts.

        Its collation is a property of the field, so that no column that identifies something can
        lack it. Use TextField only for texts that nothing compares.
        """

        def db_parameters(self, connection: Any) -> Any:
            """Add the collation that compares exactly."""
            return super().db_parameters(connection) | {"collation": exact_collation(connection)}


class _ContainsIgnoringCase(IContains):
    """``icontains``. LIKE of MySQL and MariaDB compares by the collation of the column."""

    def process_lhs(self, compiler: Any, connection: Any, lhs: Any = None) -> Any:
        sql, parameters = super().process_lhs(compiler, connection, lhs)
        if connection.vendor == "mysql":
            sql = f"CONVERT({sql} USING utf8mb4) COLLATE {_IGNORES_CASE}"
        return sql, parameters


ExactCharField.register_lookup(_ContainsIgnoringCase)


# Partial indexes and constraints on databases that support them, otherwise the closest full ones.
#
# A unique key over nullable marker columns works on every database, because NULLs never conflict
# (SQL:2003 §4.17).


def _whole(schema_editor: BaseDatabaseSchemaEditor) -> bool:
    return not schema_editor.connection.features.supports_partial_indexes


class PartialIndex(models.Index):
    """An index on the rows of ``where``; on a database without partial indexes, one on the
    ``elsewhere`` fields, by default the same ones.

    ``where`` is not passed as Django's ``condition``, whose check warns that such a database has no
    index.
    """

    def __init__(
        self, *, where: models.Q, elsewhere: tuple[str, ...] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.where, self.elsewhere = where, tuple(elsewhere or self.fields)

    def deconstruct(self) -> Any:
        """Add the two additional arguments for migrations."""
        path, args, options = super().deconstruct()
        return path, args, {**options, "where": self.where, "elsewhere": self.elsewhere}

    def _for(self, schema_editor: Any) -> models.Index:
        if _whole(schema_editor):
            return models.Index(fields=self.elsewhere, name=self.name)
        return models.Index(fields=self.fields, name=self.name, condition=self.where)

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **options: Any) -> Any:
        """Create the index in the form that this database supports."""
        return self._for(schema_editor).create_sql(model, schema_editor, using, **options)

    def remove_sql(self, model: Any, schema_editor: Any, **options: Any) -> Any:
        """Remove the index in the form that this database supports."""
        return self._for(schema_editor).remove_sql(model, schema_editor, **options)


class PresentUnique(models.UniqueConstraint):
    """Unique among the rows whose last field is not NULL; on other databases a plain UNIQUE, where
    NULLs never conflict.

    The condition is not passed to Django, whose check warns that such a database has no constraint.
    """

    def __init__(self, *, fields: tuple[str, ...], name: str) -> None:
        super().__init__(fields=fields, name=name)

    def _for(self, schema_editor: Any) -> models.UniqueConstraint:
        present = (
            None if _whole(schema_editor) else models.Q(**{f"{self.fields[-1]}__isnull": False})
        )
        return models.UniqueConstraint(fields=self.fields, name=self.name, condition=present)

    def constraint_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return the SQL within CREATE TABLE."""
        return self._for(schema_editor).constraint_sql(model, schema_editor)

    def create_sql(self, model: Any, schema_editor: Any) -> Any:
        """Create the constraint in the form that this database supports."""
        return self._for(schema_editor).create_sql(model, schema_editor)

    def remove_sql(self, model: Any, schema_editor: Any) -> Any:
        """Remove the constraint in the form that this database supports."""
        return self._for(schema_editor).remove_sql(model, schema_editor)


# The database's clock in SQL, in UTC independent of the session's zone. On SQLite it is the host's
# clock, always with six digits.


class DatabaseNow(models.Func):
    """The time at which the database evaluates it; also current after a statement has waited for a
    lock.
    """

    template = "CURRENT_TIMESTAMP"
    output_field = InstantField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="CLOCK_TIMESTAMP()", **context)

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(
            compiler,
            connection,
            template="STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'NOW')",
            **context,
        )


class StatementTime(DatabaseNow):
    """The time at which the statement began: for default values, so that one INSERT writes one time
    into all columns. On PostgreSQL, `DatabaseNow` is evaluated once per column.
    """

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="STATEMENT_TIMESTAMP()", **context)


# ``status__standing``: the status as a condition in addition to the primary key, without the use
# of an index.


class UnindexedIn(In):
    """``IN`` for which MySQL and MariaDB use no index.

    There an UPDATE by primary key and status may use the index on status. It then locks the index
    entry before the row, and so deadlocks with transactions that lock the row first.
    """

    lookup_name = "standing"

    def process_lhs(self, compiler: Any, connection: Any, lhs: Any = None) -> tuple[str, Any]:
        """Hide the column from the optimizer of MySQL and MariaDB."""
        sql, parameters = super().process_lhs(compiler, connection, lhs)
        return (f"CONCAT({sql})" if connection.vendor == "mysql" else sql), parameters


# A JSON column that is encrypted in the database if ENCRYPTION_KEYS is set.
#
# The attribute of an instance is always the plain value. It is decrypted when it is read first, and
# this raises EncryptionKeyMissing or DecryptionFailed. ``values()`` and ``values_list()`` return
# EncryptedValue objects. An insert encrypts; an UPDATE of a queryset writes EncryptedValue objects,
# which ``stored_columns`` returns.


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
        decoded = super().from_db_value(value, expression, connection)
        return stored_value(decoded) or decoded

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
    columns: dict[str, Any] = {
        spec.attname: spec.pre_save(row, add=False)
        for spec in row._meta.concrete_fields
        if isinstance(spec, EncryptedJSONField)
    }
    keys = {value.key_id for value in columns.values() if isinstance(value, EncryptedValue)}
    columns["encryption_key"] = keys.pop() if len(keys) == 1 else MIXED if keys else None
    return columns
