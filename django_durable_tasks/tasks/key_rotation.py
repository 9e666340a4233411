"""Encrypts stored values again with the first key, in batches, while the service runs.

A batch locks its rows, skipping those that other transactions have locked, and changes
nothing but the encrypted columns and the key id. Therefore it overwrites no concurrent edit,
and a message of a task stays valid. An interrupted rotation is continued by the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from django.apps import apps
from django.db.models import Case, F, JSONField, Q, QuerySet, Value, When
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.audit import record_start
from django_durable_tasks.encryption import EncryptedValue, current_key_id, decrypted, encrypted
from django_durable_tasks.exceptions import EncryptionError, InvalidOption
from django_durable_tasks.models.fields import EncryptedJSONField, place_of, undecrypted
from django_durable_tasks.operations import (
    OF_ALL_TENANTS,
    Argument,
    Progress,
    Target,
    no_progress,
    operation,
)
from django_durable_tasks.store import tables

BATCH = 200


def _models() -> list[Any]:
    """Return the models with encrypted columns, also those of optional apps."""
    return [model for model in apps.get_models() if hasattr(model, "encryption_key")]


@dataclass(slots=True)
class RotationResult:
    """The result of one batch: rows that were read, those changed, and those that cannot be
    decrypted, with the first error.
    """

    looked_at: int = 0
    changed: int = 0
    failed: int = 0
    error: str = ""


@dataclass(slots=True)
class KeyRotation:
    """The progress of a rotation. ``remaining``: rows of each table with another key than the first
    one. ``failed``: rows that could not be decrypted; ``error`` is the first reason.
    """

    remaining: dict[str, int]
    changed: int = 0
    failed: int = 0
    error: str = ""


@operation(
    Target.INSTALLATION,
    title=_("Rotate encryption keys"),
    help=_(
        "Encrypts stored values again with the first key of ENCRYPTION_KEYS, in batches, while the"
        " service runs."
    ),
    permission="",
    confirm=False,
    not_in_api=OF_ALL_TENANTS,
    not_in_admin="it can change more rows than a web request has time for",
    counted=lambda rotation: {"rotated": rotation.changed},
)
def rotate_keys(
    *,
    dry_run: bool = False,
    include_plain: Annotated[
        bool,
        Argument(
            _("Include plain rows"),
            _("Encrypt rows that were stored before encryption was switched on."),
        ),
    ] = False,
    progress: Progress = no_progress,
) -> KeyRotation:
    """Encrypt stored values with the first key.

    Works in several transactions. The audit entry is written before the first one.
    """
    if current_key_id() is None:
        raise InvalidOption("DURABLE_TASKS['ENCRYPTION_KEYS'] is empty: nothing is encrypted.")
    result = KeyRotation(remaining())
    if dry_run:
        return result
    record_start("installation.rotate_keys", key=current_key_id())
    expected = sum(result.remaining.values())
    passes = [rotate, *([encrypt_plain] if include_plain else [])]
    for batch in (batch for rotation in passes for batch in rotation()):
        result.changed += batch.changed
        result.failed += batch.failed
        result.error = result.error or batch.error
        progress(f"{result.changed} of {max(expected, result.changed)}")
    result.remaining = remaining()
    return result


def remaining() -> dict[str, int]:
    """Return how many rows of each table are encrypted with another key than the first one."""
    key = current_key_id()
    # Two ranges of the index instead of a negation.
    other_keys = Q(encryption_key__lt=key) | Q(encryption_key__gt=key)
    return {
        model._meta.db_table: 0 if key is None else _rows(model).filter(other_keys).count()
        for model in _models()
    }


def _rows(model: Any) -> QuerySet[Any]:
    rows: QuerySet[Any] = model.objects.using(tables.database()).unguarded()
    return rows


def rotate(batch: int = BATCH) -> Iterator[RotationResult]:
    """Encrypt all rows again, and yield the result of each batch.

    A row that cannot be decrypted is left as it is and counted as failed.
    """
    key = current_key_id()
    for model in _models() if key is not None else ():
        # The key ids in the table; one read of the index for each.
        rows = _rows(model).order_by("encryption_key").values_list("encryption_key", flat=True)
        old = rows.filter(encryption_key__isnull=False).first()
        while old is not None:
            if old != key:
                yield from _batches(_rows(model).filter(encryption_key=old), str(key), batch)
            old = rows.filter(encryption_key__gt=old).first()


def encrypt_plain(batch: int = BATCH) -> Iterator[RotationResult]:
    """Encrypt rows that were stored before encryption was switched on; reads whole tables."""
    key = current_key_id()
    for model in _models() if key is not None else ():
        rows = _rows(model).filter(encryption_key__isnull=True)
        yield from _batches(rows, str(key), batch)


def _batches(rows: QuerySet[Any], key: str, size: int) -> Iterator[RotationResult]:
    """Encrypt these rows in the order of their primary keys."""
    last, ids = None, list(rows.order_by("pk").values_list("pk", flat=True)[:size])
    while ids:
        with tables.atomic():
            page = _rows(rows.model).filter(pk__in=ids).order_by("pk")
            done = _write(rows.model, key, tables.locked_for_change(page, skip_locked=True))
        done.looked_at, last = len(ids), ids[-1]
        yield done
        later = rows.filter(pk__gt=last).order_by("pk")
        ids = list(later.values_list("pk", flat=True)[:size])


def _write(model: Any, key: str, rows: Iterable[Any]) -> RotationResult:
    done = RotationResult()
    fields = model._meta.concrete_fields
    changes: dict[str, list[Any]] = {
        field.attname: [] for field in fields if isinstance(field, EncryptedJSONField)
    }
    ids: list[Any] = []
    for row in rows:
        if row.encryption_key == key:
            continue  # changed since it was selected
        try:
            values = {}
            for name in changes:
                place = place_of(row, name)
                values[name] = encrypted(decrypted(undecrypted(row, name), place), place)
        except EncryptionError as error:
            done.failed += 1
            done.error = done.error or str(error)
            continue
        stored = {
            name: value for name, value in values.items() if isinstance(value, EncryptedValue)
        }
        for name, value in stored.items():
            envelope = Value(dict(value.envelope), JSONField())
            changes[name].append(When(pk=row.pk, then=envelope))
        if stored or row.encryption_key is not None:
            ids.append(row.pk)
    if ids:
        # A row without an encrypted value of a column keeps it.
        cases = {
            name: Case(*whens, default=F(name), output_field=JSONField())
            for name, whens in changes.items()
            if whens
        }
        done.changed = _rows(model).filter(pk__in=ids).update(encryption_key=key, **cases)
    return done
