"""DeadLetter: the record of a task that failed finally. Every FAILED task has exactly one open dead
letter.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import ports
from django_durable_tasks.models.encrypted_json import TASK_TABLE, EncryptedJSONField
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet, alters_data
from django_durable_tasks.models.indexes import PartialIndex, PresentUnique
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID
from django_durable_tasks.rules.states import Resolution


class DeadLetterQuerySet(GuardedQuerySet["DeadLetter"]):
    """The queryset, with the operations on its open dead letters."""

    def open(self) -> Self:
        """Open dead letters."""
        return self.filter(open_task__isnull=False)

    def for_tenant(self, tenant: Any) -> Self:
        """Dead letters of this tenant (a Tenant or its id)."""
        return self.filter(tenant_id=getattr(tenant, "pk", tenant))

    @alters_data
    def replay(
        self,
        *,
        by: str = "",
        reason: str = "",
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[uuid.UUID]:
        """Run the tasks of the open dead letters again, as ``Task.objects.replay`` does; return
        their ids.
        """
        return ports.dead_letters.replay(self, by=by, reason=reason, args=args, kwargs=kwargs)

    @alters_data
    def discard(self, *, by: str = "", reason: str = "") -> int:
        """Close the open dead letters; their tasks stay FAILED. Return how many were closed."""
        return ports.dead_letters.discard(self, by=by, reason=reason)


class DeadLetter(GuardedModel):
    """Why a task failed finally, how the dead letter was closed, and by whom."""

    instead: ClassVar[str] = (
        "Close dead letters with DeadLetter.objects.filter(...).replay() or discard()."
    )

    id = models.BigAutoField(primary_key=True)
    task = models.ForeignKey(
        "django_durable_tasks.Task", models.CASCADE, related_name="dead_letters"
    )
    open_task = models.UUIDField(null=True, editable=False)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    reason = ExactCharField(_("reason"), max_length=20)
    fingerprint = ExactCharField(_("fingerprint"), max_length=16, db_index=True)
    error_message = models.TextField(_("error"), blank=True)
    attempts = models.IntegerField(_("attempts"))
    args = EncryptedJSONField(_("arguments"), default=list)
    kwargs = EncryptedJSONField(_("keyword arguments"), default=dict)
    encryption_key = ExactCharField(
        _("encryption key"), max_length=40, null=True, blank=True, editable=False
    )
    created_at = InstantField(_("created at"))
    resolved_at = InstantField(_("resolved at"), null=True, blank=True)
    resolution = ExactCharField(
        _("resolution"),
        max_length=9,
        blank=True,
        default="",
        choices=[(r.value, r.value) for r in Resolution],
    )
    resolved_by = ExactCharField(_("resolved by"), max_length=200, blank=True, default="")
    comment = ExactCharField(_("comment"), max_length=500, blank=True, default="")

    objects = DeadLetterQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_dead_letter"
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        ordering: ClassVar = ["-id"]
        permissions: ClassVar = [
            ("replay_deadletter", "Can replay"),
            ("discard_deadletter", "Can discard"),
        ]
        constraints: ClassVar = [
            PresentUnique(fields=("open_task",), name="durable_one_open_dead_letter")
        ]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "id"], name="durable_dead_letter_tenant"),
            PartialIndex(
                fields=["tenant", "id"],
                where=models.Q(open_task__isnull=False),
                elsewhere=("tenant", "open_task"),
                name="durable_dead_letter_open",
            ),
            PartialIndex(
                fields=["encryption_key", "id"],
                where=models.Q(encryption_key__isnull=False),
                elsewhere=("encryption_key", "id"),
                name="durable_letter_encryption",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task_id}: {self.reason}"

    @property
    def encryption_place(self) -> tuple[str, Any]:
        """Its arguments are those of the task, which are copied without decryption."""
        return TASK_TABLE, self.task_id
