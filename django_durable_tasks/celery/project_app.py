"""The Celery application of a project that has none: configured by the ``CELERY_`` settings, as one
in ``<project>/celery.py`` would be.

It is made when Django starts, unless the packages of the project have made one, or contain a module
``celery`` that was not imported: the system check E007 reports that. Workers find it, or
the application of the project, by ``celery -A django_durable_tasks worker``.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import django
from celery import Celery, _state, current_app
from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

DATABASE_TRANSPORT = "django_durable_tasks.contrib.database_transport"
_DATABASE_URL = "durable-database://default"
_BROKER_SETTINGS = ("CELERY_BROKER_URL", "CELERY_BROKER_WRITE_URL", "CELERY_BROKER_READ_URL")
# What docs/how-to/install.md advises, unless the project has the setting.
_DEFAULTS = {"worker_prefetch_multiplier": 1, "broker_connection_retry_on_startup": True}


class _Made:
    app: Celery | None = None


def default_broker_url() -> str | None:
    """Return the broker of a project that configures none: its own database, if the app of that
    transport is installed, else None.
    """
    configured = "CELERY_BROKER_URL" in os.environ or any(
        getattr(django_settings, name, None) for name in _BROKER_SETTINGS
    )
    return _DATABASE_URL if not configured and apps.is_installed(DATABASE_TRANSPORT) else None


def unimported_module() -> str | None:
    """Return the module ``celery`` of the project's packages, which has the application of the
    project if it exists; None if there is no such module.
    """
    package = settings_module()
    while (package := package.rpartition(".")[0]) != "":
        name = f"{package}.celery"
        if find_spec(name) is not None:
            return name
    return None


def settings_module() -> str:
    """Return DJANGO_SETTINGS_MODULE, or an empty text."""
    return os.environ.get("DJANGO_SETTINGS_MODULE", "")


def make_if_missing() -> None:
    """Make an application if this process has none; called in ``AppConfig.ready()``."""
    if _state.default_app is not None or _state._tls.current_app is not None:
        return
    if unimported_module() is not None:
        return
    _make_way_for_another_app()
    defaults = {
        key: value
        for key, value in _DEFAULTS.items()
        if not hasattr(django_settings, f"CELERY_{key.upper()}")
    }
    name = settings_module().partition(".")[0] or "project"
    app = Celery(name, broker=default_broker_url(), changes=defaults)
    app.config_from_object("django.conf:settings", namespace="CELERY")
    app.autodiscover_tasks()
    app.set_default()  # for every thread, also without Celery's adaptation to Django
    _Made.app = app


def _make_way_for_another_app() -> None:
    """Let an application that the project makes later, for example in an ``AppConfig.ready()``, be
    the default one. Celery keeps the first application as the default of other threads.
    """
    original = Celery.set_current
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def set_current(self: Any) -> None:
        original(self)
        if _Made.app is not None and _state.default_app is _Made.app:
            self.set_default()

    Celery.set_current = set_current


def app_of_worker() -> Celery:
    """Return the application of the project for ``celery -A django_durable_tasks``, which loads
    this package before Django. Raises ImproperlyConfigured without DJANGO_SETTINGS_MODULE.
    """
    if not settings_module():
        raise ImproperlyConfigured(
            "DJANGO_SETTINGS_MODULE is not set. `celery -A django_durable_tasks` needs it, for"
            " example DJANGO_SETTINGS_MODULE=shop.settings, because only manage.py sets it."
        )
    # The project is in the working folder, as with `celery -A shop`. The command `celery` searches
    # there only while it imports the module of -A, and hides an ImportError of this function.
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    django.setup()
    return current_app._get_current_object()
