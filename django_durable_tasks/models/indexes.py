"""Partial indexes and constraints on databases that support them, otherwise the closest full ones.

A unique key over nullable marker columns works on every database, because NULLs never conflict
(SQL:2003 §4.17).
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def _whole(schema_editor: BaseDatabaseSchemaEditor) -> bool:
    return not schema_editor.connection.features.supports_partial_indexes


class PartialIndex(models.Index):
    """An index on the rows of ``where``; on a database without partial indexes, one on the
    ``elsewhere`` fields.

    ``where`` is not passed as Django's ``condition``, whose check warns that such a database has no
    index.
    """

    def __init__(self, *, where: models.Q, elsewhere: tuple[str, ...], **options: Any) -> None:
        self.where, self.elsewhere = where, tuple(elsewhere)
        super().__init__(**options)

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
