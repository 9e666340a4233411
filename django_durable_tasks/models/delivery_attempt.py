"""DeliveryAttempt: one row per HTTP request of a task, written after the answer or the failure.

A worker that dies during the request leaves no row here; its attempt is LOST in the execution log.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.encrypted_json import EncryptedJSONField
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.indexes import PartialIndex
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID


class DeliveryAttemptQuerySet(GuardedQuerySet["DeliveryAttempt"]):
    """The queryset of requests."""


class DeliveryAttempt(GuardedModel):
    """A request to an outside server and its answer. Secrets are masked; durations in seconds."""

    instead: ClassVar[str] = "To send a request again, use Task.objects.filter(...).replay()."

    id = models.BigAutoField(primary_key=True)
    # Without a constraint in the database, as in the execution log; retention deletes both.
    task = models.ForeignKey(
        "django_durable_tasks.Task", models.CASCADE, related_name="deliveries", db_constraint=False
    )
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    attempt_number = models.IntegerField(_("attempt"))
    run_id = models.UUIDField(_("run id"), null=True)
    outcome = ExactCharField(_("outcome"), max_length=6)
    started_at = InstantField(_("started at"))
    method = ExactCharField(_("method"), max_length=7)
    url = models.TextField(_("URL"))
    endpoint = ExactCharField(_("endpoint"), max_length=300)
    request_headers = EncryptedJSONField(_("request headers"), default=list)
    request_bytes = models.IntegerField(_("size of the body"), default=0)
    status = models.SmallIntegerField(_("status"), null=True)
    failure = ExactCharField(_("failure"), max_length=11, blank=True, default="")
    reason = ExactCharField(_("reason"), max_length=200, blank=True, default="")
    retry_delay = models.FloatField(_("retry delay"), null=True)
    response_headers = EncryptedJSONField(_("response headers"), default=list)
    response_body = models.TextField(_("first bytes of the answer"), blank=True, default="")
    response_truncated = models.BooleanField(_("answer truncated"), default=False)
    dns_seconds = models.FloatField(_("DNS"), null=True)
    connect_seconds = models.FloatField(_("connection"), null=True)
    tls_seconds = models.FloatField(_("TLS"), null=True)
    first_byte_seconds = models.FloatField(_("first byte"), null=True)
    total_seconds = models.FloatField(_("total"))
    encryption_key = ExactCharField(
        _("encryption key"), max_length=40, null=True, blank=True, editable=False
    )

    objects = DeliveryAttemptQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_delivery_attempt"
        verbose_name = _("delivery attempt")
        verbose_name_plural = _("delivery attempts")
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            PartialIndex(
                fields=["encryption_key", "id"],
                where=models.Q(encryption_key__isnull=False),
                elsewhere=("encryption_key", "id"),
                name="durable_delivery_encryption",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task_id} attempt {self.attempt_number}: {self.status or self.failure}"

    @property
    def encryption_place(self) -> tuple[str, str]:
        """What its ciphertext is bound to: the run, because the id is unknown before the insert."""
        return self._meta.db_table, f"{self.task_id} {self.run_id}"
