"""Tells the receivers of ``tasks_transitioned``; whatever they do, the move stands."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db import transaction

from django_durable_tasks import conf
from django_durable_tasks.lifecycle.watching import in_preview
from django_durable_tasks.models import Task
from django_durable_tasks.rules.states import Status
from django_durable_tasks.signals import tasks_transitioned


def announce(transition: str, status: Status, task_ids: Sequence[uuid.UUID]) -> None:
    """Send the signal, in a savepoint: a receiver that fails takes back what receivers wrote, not the move."""
    if not (task_ids and tasks_transitioned.has_listeners(Task)) or in_preview():
        return
    database = conf.settings().DATABASE
    with transaction.atomic(using=database):
        answers = tasks_transitioned.send_robust(
            Task, transition=transition, status=status, task_ids=list(task_ids), using=database
        )
        if any(isinstance(answer, Exception) for _, answer in answers):
            transaction.set_rollback(True, using=database)
