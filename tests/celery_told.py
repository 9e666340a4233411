"""Telling Celery something else for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import current_app


@contextmanager
def celery_told(**changes: Any) -> Iterator[None]:
    """Let Celery's configuration have these values while the block runs."""
    conf = current_app.conf
    before = dict(conf.changes)
    conf.update(changes)
    try:
        yield
    finally:
        conf.changes.clear()
        conf.changes.update(before)
