"""IdempotentRequest: the answer to a request of the HTTP API that had an ``Idempotency-Key``."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.instants import InstantField


class IdempotentRequestQuerySet(GuardedQuerySet["IdempotentRequest"]):
    """The queryset of stored answers."""


class IdempotentRequest(GuardedModel):
    """Written in the transaction of the request's effect, so that a crash leaves both or neither.

    ``operation`` is the method and the path. ``fingerprint`` is the digest of the request's body
    and parameters. Only successful answers are stored.
    """

    instead: ClassVar[str] = (
        "The HTTP API writes these rows for requests with a key (Idempotency-Key), and a scheduler"
        " deletes them after a day."
    )

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    key = ExactCharField(max_length=200)
    operation = ExactCharField(max_length=200)
    fingerprint = ExactCharField(max_length=64)
    status_code = models.SmallIntegerField(default=0)
    headers = models.JSONField(default=dict)
    body = models.JSONField(null=True)
    created_at = InstantField(db_default=StatementTime(), db_index=True)

    objects = IdempotentRequestQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_idempotent_request"
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["tenant", "key", "operation"], name="durable_idempotent_request_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.operation} {self.key}"
