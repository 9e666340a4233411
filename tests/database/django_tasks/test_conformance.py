"""The suite for backends of ``django.tasks`` passes with ours, and with the two of Django."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from django.db import transaction
from django.test import TestCase, TransactionTestCase

from django_durable_tasks import backend_conformance, testing
from django_durable_tasks.tasks_api import DjangoDummyBackend, DjangoImmediateBackend
from tests.celery_settings import celery_configured
from tests.factories import first_rows


def path_of(backend: Any) -> str:
    """Return the dotted path of a class."""
    return f"{backend.__module__}.{backend.__qualname__}"


class TestDurableTasksBackend(testing.BackendConformance, TransactionTestCase):
    """Ours, without a transaction."""

    backend: ClassVar[dict[str, Any]] = {
        "BACKEND": "django_durable_tasks.backends.DurableTasksBackend",
        "OPTIONS": {"max_attempts": 1},
    }
    is_transactional = True
    records_system_exit = False
    raises_keyboard_interrupt = True

    def setUp(self) -> None:
        """Create the default tenant, which the last test removed."""
        first_rows()
        super().setUp()

    def run_tasks(self) -> None:
        """Run what is due, and the next attempts."""
        testing.drain(raise_errors=False)


class TestDurableTasksBackendInATransaction(TestDurableTasksBackend, TestCase):
    """In a transaction, as in most tests of a project."""


class TestDurableTasksBackendInEagerMode(TestDurableTasksBackend):
    """With CELERY_TASK_ALWAYS_EAGER: tasks run at the commit."""

    def setUp(self) -> None:
        """Run tasks at the commit."""
        eager = celery_configured(task_always_eager=True)
        eager.__enter__()
        self.addCleanup(eager.__exit__, None, None, None)
        super().setUp()

    def run_tasks(self) -> None:
        """Do nothing: the tasks ran."""

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Run the tasks of the block at its end."""
        with transaction.atomic():
            yield


class TestDummyBackend(backend_conformance.BackendConformance, TransactionTestCase):
    """Ours for tests that look at the results only."""

    backend: ClassVar[dict[str, Any]] = {
        "BACKEND": "django_durable_tasks.backends.DummyBackend",
        "OPTIONS": {"max_attempts": 1},
    }
    runs_tasks = False


class TestImmediateBackend(backend_conformance.BackendConformance, TransactionTestCase):
    """Ours for tests that call the functions in ``enqueue()``."""

    backend: ClassVar[dict[str, Any]] = {
        "BACKEND": "django_durable_tasks.backends.ImmediateBackend",
        "OPTIONS": {"max_attempts": 1},
    }


class TestDjangosDummyBackend(backend_conformance.BackendConformance, TransactionTestCase):
    """The suite demands nothing that Django's backend does not do."""

    backend: ClassVar[dict[str, Any]] = {"BACKEND": path_of(DjangoDummyBackend)}
    runs_tasks = False


class TestDjangosImmediateBackend(backend_conformance.BackendConformance, TransactionTestCase):
    """The suite demands nothing that Django's backend does not do."""

    backend: ClassVar[dict[str, Any]] = {"BACKEND": path_of(DjangoImmediateBackend)}
