"""The form of an operation, created from the fields in the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin.fields import InstantField, JsonField
from django_durable_tasks.operations.operation import (
    REASON_HELP,
    Argument,
    ArgumentType,
    Operation,
    Reason,
)

REASON_LENGTH = 150
TASK_ID_ATTRIBUTES = {"autocomplete": "off", "spellcheck": "false", "placeholder": "0195f3c2-…"}


class OperationForm(forms.Form):
    """The fields of one operation and its reason."""

    operation: Operation

    def clean(self) -> dict[str, Any]:
        """Apply the check of the operation, unless one of its fields is invalid already."""
        given: dict[str, Any] = super().clean() or {}
        for name, problem in self.operation.check(given).items():
            if name not in self.errors:
                self.add_error(name, problem)
        return given

    @property
    def reason(self) -> str:
        """The reason that was given."""
        reason: str = self.cleaned_data["reason"]
        return reason

    def values(self) -> dict[str, Any]:
        """Return the values of the fields, without the reason; an empty field has its default."""
        given = {field.name: self.cleaned_data[field.name] for field in self.operation.fields}
        defaults = {field.name: field.default for field in self.operation.fields}
        return {
            name: defaults[name] if value in (None, "") else value for name, value in given.items()
        }


def reason_field(operation: Operation) -> forms.CharField:
    """Return the field of the reason."""
    return forms.CharField(
        label=_("Reason"),
        max_length=REASON_LENGTH,
        required=operation.reason != Reason.OPTIONAL,
        help_text=REASON_HELP,
    )


def form_fields(operation: Operation) -> dict[str, forms.Field]:
    """Return the fields of an operation by their names, without the reason."""
    return {field.name: _MAKERS[field.kind](field) for field in operation.fields}


def form_class(operation: Operation) -> type[OperationForm]:
    """Return the form of an operation; the reason comes last."""
    return type(
        "OperationForm",
        (OperationForm,),
        {"operation": operation, **form_fields(operation), "reason": reason_field(operation)},
    )


def reason_form(operation: Operation) -> type[OperationForm]:
    """Return the form with the reason only, for objects that are selected already."""
    return type(
        "ReasonForm",
        (OperationForm,),
        {"operation": operation, "reason": reason_field(operation), "clean": forms.Form.clean},
    )


def _texts(field: Argument) -> dict[str, Any]:
    return {"label": field.label, "help_text": field.help, "required": field.required}


def _number(kind: type[forms.IntegerField]) -> Callable[[Argument], forms.Field]:
    def make(field: Argument) -> forms.Field:
        return kind(**_texts(field), min_value=field.minimum, initial=field.default)

    return make


def _choice(field: Argument) -> forms.Field:
    return forms.ChoiceField(**_texts(field), choices=list(field.choices), initial=field.default)


_MAKERS: dict[ArgumentType, Callable[[Argument], forms.Field]] = {
    ArgumentType.TEXT: lambda field: forms.CharField(**_texts(field), max_length=200),
    ArgumentType.INSTANT: lambda field: InstantField(**_texts(field)),
    ArgumentType.INTEGER: _number(forms.IntegerField),
    ArgumentType.SECONDS: _number(forms.FloatField),
    ArgumentType.FLAG: lambda field: forms.BooleanField(**(_texts(field) | {"required": False})),
    ArgumentType.CHOICE: _choice,
    ArgumentType.JSON_LIST: lambda field: JsonField(list, label=field.label, help_text=field.help),
    ArgumentType.JSON_OBJECT: lambda field: JsonField(
        dict, label=field.label, help_text=field.help
    ),
    ArgumentType.TASK_ID: lambda field: forms.UUIDField(
        **_texts(field), widget=forms.TextInput(attrs=TASK_ID_ATTRIBUTES)
    ),
    ArgumentType.REQUEST_ID: lambda field: forms.CharField(
        max_length=200, widget=forms.HiddenInput
    ),
}
