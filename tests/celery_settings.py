"""Override Celery's configuration for the duration of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import current_app


@contextmanager
def celery_configured(**changes: Any) -> Iterator[None]:
    """Set these values in Celery's configuration while the block runs."""
    conf = current_app.conf
    before = dict(conf.changes)
    prefixed = {f"{conf.prefix}{name.upper()}": value for name, value in changes.items()}
    conf.update(
        {**changes, **prefixed}
    )  # Celery 5.6 looks for the prefixed names in Django's settings first
    forget_routes()
    try:
        yield
    finally:
        conf.changes.clear()
        conf.changes.update(before)
        forget_routes()


def forget_routes() -> None:
    """Make Celery prepare its routes and its router again from its configuration."""
    amqp = current_app._get_current_object().amqp
    amqp.flush_routes()
    vars(amqp).pop("router", None)


@contextmanager
def result_backend(url: str) -> Iterator[None]:
    """Set this result backend of Celery while the block runs."""
    app = current_app._get_current_object()
    before, app.backend_cls = (
        app.backend_cls,
        url,
    )  # it has precedence over the setting, in Celery 5.6 and 5.7
    _forget_backend(app)
    yield
    app.backend_cls = before
    _forget_backend(app)


def _forget_backend(app: Any) -> None:
    if isinstance(getattr(type(app), "_backend", None), property):  # Celery 5.7
        app._backend_cache = app._local.backend = None
    else:
        app._backend = None
