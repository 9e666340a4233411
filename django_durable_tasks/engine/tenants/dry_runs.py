"""Performs operations and rolls them back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.transitions.change_tracking import watching


@contextmanager
def rolled_back() -> Iterator[None]:
    """Roll back what the block writes. ``tasks_transitioned`` is not sent, and no message."""
    with tables.atomic(), watching(preview=True):
        yield
        transaction.set_rollback(True, using=tables.database())
