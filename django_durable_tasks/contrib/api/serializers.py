"""Bodies and answers, derived from the columns of models and the options of tasks and schedules."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any, ClassVar

from django.db import models
from django.utils.text import capfirst
from rest_framework import serializers

from django_durable_tasks.contrib.api.fields import FIELDS, ErrorText, Integer, OneOf, Seconds
from django_durable_tasks.exceptions import EncryptionError
from django_durable_tasks.models.fields import is_free_text
from django_durable_tasks.models.tasks import BUILT_IN_MEMBERS, CELERY_MEMBERS
from django_durable_tasks.texts import did_you_mean

logger = logging.getLogger("django_durable_tasks.api")
# At most 20 unknown fields are reported, 5 with a hint if their names have at most 100 characters:
# each hint compares the name with all fields.
_ERRORS, _HINTS, _HINTED = 20, 5, 100
_MEMBERS = {"target_config": BUILT_IN_MEMBERS | CELERY_MEMBERS, "delivery_config": {"to", "url"}}
"""The members of the objects in a body, which clients put beside the object instead."""
UNREADABLE = "The stored value cannot be decrypted. The operator was informed by the log."


class Body(serializers.Serializer[Any]):
    """A JSON object; unknown fields are refused with the most similar known one."""

    @classmethod
    def valid(cls, data: Any, *, briefly: bool = False) -> Any:
        """Return the values of the given fields; raises ValidationError. With ``briefly``, one
        unknown field is named, without a hint.
        """
        reader = _reader(cls)
        if briefly and isinstance(data, Mapping):
            for name in data:
                if name not in reader.names:
                    raise serializers.ValidationError({name: [unknown_field(str(name), set())]})
        return reader.run_validation(data)

    @functools.cached_property
    def names(self) -> set[str]:
        """The names of the fields."""
        return set(self.fields)

    def to_internal_value(self, data: Any) -> Any:
        """Return the values of the given fields; raises ValidationError."""
        if not isinstance(data, Mapping):
            raise serializers.ValidationError(
                {"non_field_errors": ["is no JSON object"]}, code="type"
            )
        known = self.names
        unknown = [name for name in data if name not in known]
        if unknown:
            raise serializers.ValidationError(
                {
                    name: [unknown_field(str(name), known if place < _HINTS else set())]
                    for place, name in enumerate(unknown[:_ERRORS])
                }
            )
        return super().to_internal_value(data)


@functools.cache
def _reader(body: type[Body]) -> Body:
    """Return an instance that validates bodies and keeps no state of them.

    Making its fields takes longer than validating a body.
    """
    return body()


def unknown_field(name: str, known: set[str]) -> Any:
    """Return the error of a field that does not exist, with the object that has such a member or
    the most similar field.
    """
    owner = next(
        (field for field, members in _MEMBERS.items() if field in known and name in members), None
    )
    hint = did_you_mean(name, known) if len(name) <= _HINTED else ""
    hint = f"It is a member of {owner}: put it there." if owner else hint
    text = f"is no field. {hint}".strip()
    return serializers.ErrorDetail(text, code="unknown_field")


def column_field(column: Any, **options: Any) -> Any:
    """Return the field for a column of a model, with its choices and help."""
    if isinstance(column, models.ForeignKey):
        options.setdefault("allow_null", column.null)
        column = column.target_field
    if column.help_text:
        options.setdefault("help_text", str(column.help_text))
    if column.choices:
        return OneOf(choices=dict(column.choices), **options)
    if is_free_text(column):
        return ErrorText(**options)
    kinds = (FIELDS[kind] for kind in type(column).__mro__ if kind in FIELDS)
    return next(kinds)(**options)


class Answer(Body):
    """What is shown of an object: its ``Meta.model``'s columns but those of ``Meta.hidden`` and
    those that only the engine reads, which are not editable; and the declared fields. A new column
    is shown unless it is one of them.
    """

    class Meta:
        model: type[models.Model] | None = None
        hidden: Collection[str] = ()

    def get_fields(self) -> dict[str, Any]:
        """Return the declared fields and those of the columns."""
        declared = super().get_fields()
        if self.Meta.model is None:
            return declared
        columns = {
            column.attname: column_field(column, allow_null=column.null)
            for column in self.Meta.model._meta.concrete_fields
            if column.editable and column.name not in {"id", "tenant", *self.Meta.hidden}
        }
        return {**columns, **declared}

    @classmethod
    def shown(
        cls, row: Any, *, plain: bool = False, without: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return a row as JSON values; its secrets are masked unless ``plain``.

        A value that cannot be decrypted is None if the answer has a field for the reason:
        otherwise one such row would hide the others of a list.
        """
        values: dict[str, Any] = {}
        for name, read, error in _readers(cls):
            if name in without:
                continue
            try:
                values[name] = read(row, plain)
            except EncryptionError as undecryptable:
                if not error:
                    raise
                # The text names the key and the row, which concern operators only.
                kind = capfirst(row._meta.verbose_name)
                logger.error("%s %s cannot be decrypted: %s", kind, row.pk, undecryptable)
                values[name], values[error] = None, UNREADABLE
            else:
                if error:
                    values[error] = ""
        return values


@functools.cache
def _readers(answer_class: type[Answer]) -> tuple[tuple[str, Callable[[Any, bool], Any], str], ...]:
    """Return name, reader and error field of each field. They are made once, because making them
    costs more than a row.
    """
    fields = dict(answer_class().fields)
    errors = {f"{name}_error" for name in fields} & set(fields)
    return tuple(
        (name, _reader_of(field), f"{name}_error" if f"{name}_error" in errors else "")
        for name, field in fields.items()
        if name not in errors
    )


def _reader_of(field: Any) -> Callable[[Any, bool], Any]:
    if hasattr(field, "shown"):
        return lambda row, plain: field.shown(row, plain=plain)
    value_of, represent = attrgetter(str(field.source)), field.to_representation

    def read(row: Any, _plain: bool) -> Any:
        value = value_of(row)
        return None if value is None else represent(value)

    return read


@functools.cache
def list_of(answer_class: type[Answer]) -> type[Body]:
    """Return the serializer of a page of these answers."""
    fields = {
        "data": serializers.ListField(child=answer_class()),
        "next_cursor": serializers.CharField(allow_null=True, required=False),
        "prev_cursor": serializers.CharField(allow_null=True, required=False),
        "has_more": serializers.BooleanField(required=False),
        "__doc__": f"A page. {answer_class.__doc__}",
    }
    return type(f"{answer_class.__name__.removesuffix('Answer')}Page", (Body,), fields)


class Options(Body):
    """A body with the options of a task, a schedule or a setting.

    ``Meta.options`` are their names, ``Meta.model`` has the columns in which they are stored,
    ``columns`` names those with another name, and ``counts``, ``seconds`` and ``choices`` are the
    limits that their readers check. ``hidden`` options are not offered.
    """

    class Meta:
        model: type[models.Model]
        options: Iterable[str] = ()
        hidden: Collection[str] = ()
        columns: ClassVar[Mapping[str, str]] = {}
        counts: ClassVar[Mapping[str, tuple[int, int]]] = {}
        seconds: ClassVar[Mapping[str, float]] = {}
        choices: ClassVar[Mapping[str, Any]] = {}
        nullable: Collection[str] = ()

    def get_fields(self) -> dict[str, Any]:
        """Return the fields of the options, and the declared ones."""
        declared = super().get_fields()
        meta, fields = self.Meta, dict[str, Any]()
        columns = {column.name: column for column in meta.model._meta.concrete_fields}
        for name in meta.options:
            if name in declared or name in meta.hidden:
                continue
            column: Any = columns.get(meta.columns.get(name, name))
            options: dict[str, Any] = {"required": False}
            if name in meta.nullable:
                options["allow_null"] = True
            if name in meta.choices:
                fields[name] = OneOf(choices=meta.choices[name], **options)
            elif name in meta.counts:
                least, most = meta.counts[name]
                help_text = str(getattr(column, "help_text", ""))
                options |= {"min_value": least, "max_value": most, "help_text": help_text}
                fields[name] = Integer(**options)
            elif name in meta.seconds:
                fields[name] = Seconds(min_value=meta.seconds[name], **options)
            else:
                if isinstance(column, models.CharField) and not column.choices:
                    options["max_length"] = column.max_length
                    options["allow_blank"] = column.blank and not column.null
                fields[name] = column_field(column, **options)
        return {**fields, **declared}
