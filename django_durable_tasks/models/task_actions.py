"""The operations on the tasks of a queryset; ``by`` (who) and ``reason`` (why) are stored in the
tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from django.db import models

from django_durable_tasks import ports
from django_durable_tasks.models.guarded import GuardedQuerySet, alters_data

M = TypeVar("M", bound=models.Model)


class TaskActions(GuardedQuerySet[M]):
    """Changes those tasks of the queryset whose status allows it; the others are left unchanged."""

    @alters_data
    def replay(
        self,
        *,
        by: str = "",
        reason: str = "",
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[uuid.UUID]:
        """Run the FAILED, CANCELLED, SKIPPED and EXPIRED tasks again; return their ids.

        Failures and crashes are counted from zero again, and open dead letters are closed. ``args``
        and ``kwargs`` replace the arguments of exactly one task. Raises TransitionRefused if a
        newer open task has the same key.
        """
        return ports.tasks.replay(self, by=by, reason=reason, args=args, kwargs=kwargs)

    @alters_data
    def retry(self, *, by: str = "", reason: str = "") -> int:
        """Make the tasks that wait for their next attempt due now; return how many."""
        return ports.tasks.retry(self, by=by, reason=reason)

    @alters_data
    def cancel(self, *, by: str = "", reason: str = "") -> int:
        """Cancel the tasks that have not started and request RUNNING ones to stop; return their
        total number.
        """
        return ports.tasks.cancel(self, by=by, reason=reason)

    @alters_data
    def force_complete(self, *, by: str = "", reason: str = "") -> list[uuid.UUID]:
        """Set the tasks to SUCCESS without running them, and resolve their dependents; return their
        ids.
        """
        return ports.tasks.force_complete(self, by=by, reason=reason)

    @alters_data
    def reschedule(self, run_at: datetime, *, by: str = "", reason: str = "") -> int:
        """Move the tasks that have not started to another time (aware); return how many."""
        return ports.tasks.reschedule(self, run_at, by=by, reason=reason)
