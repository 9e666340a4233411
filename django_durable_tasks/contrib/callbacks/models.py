"""Endpoints of HTTP callbacks, and the requests that were sent to them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.choices import DEFAULT_TENANT_ID
from django_durable_tasks.models import fields
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet

# Endpoint: the health of a receiver of HTTP callbacks. A row exists after its first failure.


class EndpointQuerySet(GuardedQuerySet["Endpoint"]):
    """The queryset, which mypy's plugin resolves by its name only."""


class Endpoint(GuardedModel):
    """A receiver of one tenant, and the state of its circuit breaker."""

    instead: ClassVar[str] = "The results of http_callback(...) write it."

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    key = fields.ExactCharField(
        _("key"),
        max_length=200,
        unique=True,
        help_text=_("The limit key of its tasks: the origin of the URL, or `endpoint=`."),
    )
    failures = models.IntegerField(_("failures in a row"), db_default=0)
    openings = models.IntegerField(_("openings since the last success"), db_default=0)
    open_until = fields.InstantField(_("open until"), null=True, blank=True)
    probe_until = fields.InstantField(_("probe until"), null=True, blank=True)
    gone_at = fields.InstantField(
        _("gone at"),
        null=True,
        blank=True,
        help_text=_("When it ended deliveries, for example with 410."),
    )
    last_failure = fields.ExactCharField(
        _("last failure"), max_length=200, db_default="", blank=True
    )
    updated_at = fields.InstantField(_("updated at"), db_default=fields.StatementTime())

    objects = EndpointQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_endpoint"
        verbose_name = _("endpoint")
        verbose_name_plural = _("endpoints")
        ordering: ClassVar = ["key"]
        indexes: ClassVar = [
            # Read once a second by each process that claims tasks.
            fields.PartialIndex(
                elsewhere=("open_until",),
                fields=["open_until"],
                name="durable_endpoint_open",
                where=models.Q(open_until__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return self.key


# DeliveryAttempt: one row per HTTP request of a task, written after the answer or the failure.
#
# A worker that dies during the request leaves no row here; its attempt is LOST in the execution
# log.


class DeliveryAttemptQuerySet(GuardedQuerySet["DeliveryAttempt"]):
    """The queryset, which mypy's plugin resolves by its name only."""


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
    outcome = fields.ExactCharField(_("outcome"), max_length=6)
    started_at = fields.InstantField(_("started at"))
    method = fields.ExactCharField(_("method"), max_length=7)
    url = models.TextField(_("URL"))
    endpoint = fields.ExactCharField(_("endpoint"), max_length=300)
    request_headers = fields.EncryptedJSONField(_("request headers"), default=list)
    request_bytes = models.IntegerField(_("size of the body"), default=0)
    status = models.SmallIntegerField(_("status"), null=True)
    failure = fields.ExactCharField(_("failure"), max_length=11, blank=True, default="")
    reason = fields.ExactCharField(_("reason"), max_length=200, blank=True, default="")
    retry_delay = models.FloatField(_("retry delay"), null=True)
    response_headers = fields.EncryptedJSONField(_("response headers"), default=list)
    response_body = models.TextField(_("first bytes of the answer"), blank=True, default="")
    response_truncated = models.BooleanField(_("answer truncated"), default=False)
    dns_seconds = models.FloatField(_("DNS"), null=True)
    connect_seconds = models.FloatField(_("connection"), null=True)
    tls_seconds = models.FloatField(_("TLS"), null=True)
    first_byte_seconds = models.FloatField(_("first byte"), null=True)
    total_seconds = models.FloatField(_("total"))
    encryption_key = fields.ExactCharField(
        _("encryption key"), max_length=40, null=True, blank=True, editable=False
    )

    objects = DeliveryAttemptQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_delivery_attempt"
        verbose_name = _("delivery attempt")
        verbose_name_plural = _("delivery attempts")
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            fields.PartialIndex(
                fields=["encryption_key", "id"],
                where=models.Q(encryption_key__isnull=False),
                elsewhere=("encryption_key", "id"),
                name="durable_delivery_encryption",
            )
        ]

    def __str__(self) -> str:
        return f"{self.task_id} attempt {self.attempt_number}: {self.status or self.failure}"

    @property
    def encryption_place(self) -> tuple[str, str]:
        """What its ciphertext is bound to: the run, because the id is unknown before the insert."""
        return self._meta.db_table, f"{self.task_id} {self.run_id}"
