"""The tables of the HTTP API: quotas of tenants, their staff users, API keys,
answered requests and bulk operations.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.choices import KeyMode
from django_durable_tasks.models import fields
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet, TenantQuerySet
from django_durable_tasks.task_values import new_task_id

# TenantQuota: what an operator allows one tenant. Other tenants have the values of QUOTAS.


class TenantQuotaQuerySet(GuardedQuerySet["TenantQuota"]):
    """The queryset, which mypy's plugin resolves by its name only."""


class TenantQuota(GuardedModel):
    """The quotas of a tenant, and how many tasks it may create before its open tasks are counted
    again.

    ``notified_at`` has the time of the last notification about each quota. A quota that is NULL or
    empty has the value of QUOTAS. The row is locked while a task of the
    tenant is created through the API, so that concurrent requests cannot exceed a quota.
    """

    instead: ClassVar[str] = (
        "Use `manage.py durable quota` or the page of the tenant in the admin, which call"
        " quotas.set_quotas(...)."
    )

    tenant = models.OneToOneField(
        "django_durable_tasks.Tenant",
        models.CASCADE,
        primary_key=True,
        related_name="quota",
    )
    open_tasks = models.IntegerField(_("open tasks"), null=True, blank=True)
    recurring_tasks = models.IntegerField(_("recurring tasks"), null=True, blank=True)
    runs_per_day = models.IntegerField(
        _("runs of a recurring task in a day"), null=True, blank=True
    )
    calendars = models.IntegerField(_("calendars"), null=True, blank=True)
    payload_bytes = models.IntegerField(
        _("bytes of the arguments of a task"), null=True, blank=True
    )
    requests = fields.ExactCharField(_("requests"), max_length=20, blank=True, db_default="")
    set_by = fields.ExactCharField(_("set by"), max_length=200, blank=True, db_default="")
    reason = fields.ExactCharField(_("reason"), max_length=500, blank=True, db_default="")
    set_at = fields.InstantField(_("set at"), null=True, blank=True)
    creations_left = models.IntegerField(db_default=0, editable=False)
    notified_at = models.JSONField(default=dict, editable=False)

    objects = TenantQuotaQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_tenant_quota"
        verbose_name = _("quota")
        verbose_name_plural = _("quotas")
        permissions: ClassVar = [("set_tenantquota", "Can set the quotas of a tenant")]

    def __str__(self) -> str:
        return str(self.tenant_id)


# StaffTenant: a tenant to which a staff user is limited.


class StaffTenantQuerySet(GuardedQuerySet["StaffTenant"]):
    """The queryset, which mypy's plugin resolves by its name only."""


class StaffTenant(GuardedModel):
    """A user with at least one row sees and changes only the tenants of its rows.

    A row without a tenant keeps a user limited whose assignment was removed, or whose tenant was
    deleted. Only deleting all rows of a user, on request, lets the user see all tenants.

    ``user_key`` is the primary key of the user as text and no foreign key, because the users may be
    in another database than the tasks.
    """

    instead: ClassVar[str] = (
        "Use `manage.py durable staff` or the page of the tenant in the admin, which call"
        " access.assign_staff(...) and access.unassign_staff(...)."
    )

    id = models.BigAutoField(primary_key=True)
    user_key = fields.ExactCharField(max_length=100)
    username = fields.ExactCharField(_("user name"), max_length=200)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant", models.SET_NULL, null=True, blank=True, related_name="staff"
    )
    assigned_by = fields.ExactCharField(_("assigned by"), max_length=200, blank=True, db_default="")
    reason = fields.ExactCharField(_("reason"), max_length=500, blank=True, db_default="")

    objects = StaffTenantQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_staff_tenant"
        verbose_name = _("staff user of a tenant")
        verbose_name_plural = _("staff users of tenants")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user_key", "tenant"], name="durable_staff_tenant")
        ]

    def __str__(self) -> str:
        return self.username


# ApiKey: a key with which a program uses the HTTP API as one tenant.


class ApiKeyQuerySet(TenantQuerySet["ApiKey"]):
    """The queryset of API keys."""

    def live(self, now: datetime) -> Self:
        """Keys that are neither expired nor revoked at this time."""
        return self.filter(
            Q(expires_at__isnull=True) | Q(expires_at__gt=now),
            Q(revoked_at__isnull=True) | Q(revoked_at__gt=now),
        )


class ApiKey(GuardedModel):
    """The id and the digest of a key. The key itself is shown once and stored nowhere."""

    instead: ClassVar[str] = (
        "Use `manage.py durable api-key` (create, revoke), or the page of API keys in the admin."
    )

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant", models.PROTECT, related_name="api_keys"
    )
    name = fields.ExactCharField(
        _("name"), max_length=100, help_text=_("What uses the key. A rotation keeps the name.")
    )
    identifier = fields.ExactCharField(_("id"), max_length=8, unique=True)
    mode = fields.ExactCharField(_("mode"), max_length=4, choices=fields.choices_of(KeyMode))
    digest = fields.ExactCharField(max_length=64, editable=False)
    scopes = models.JSONField(_("scopes"), default=list)
    created_at = fields.InstantField(_("created at"), db_default=fields.StatementTime())
    created_by = fields.ExactCharField(_("created by"), max_length=200, blank=True, default="")
    expires_at = fields.InstantField(_("expires at"), null=True, blank=True)
    revoked_at = fields.InstantField(_("revoked at"), null=True, blank=True)
    revoked_by = fields.ExactCharField(_("revoked by"), max_length=200, blank=True, default="")
    reason = fields.ExactCharField(_("reason"), max_length=500, blank=True, default="")
    last_used_at = fields.InstantField(_("last used at"), null=True, blank=True)

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_api_key"
        verbose_name = _("API key")
        verbose_name_plural = _("API keys")
        ordering: ClassVar = ["-id"]
        permissions: ClassVar = [("revoke_apikey", "Can revoke")]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "name"], name="durable_api_key_name"),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix})"

    @property
    def prefix(self) -> str:
        """The part of the key that is not secret."""
        return f"ddt_{self.mode}_{self.identifier}"

    def is_live(self, now: datetime) -> bool:
        """Return whether the key is neither expired nor revoked at this time."""
        ends = [end for end in (self.expires_at, self.revoked_at) if end is not None]
        return all(end > now for end in ends)


# IdempotentRequest: the answer to a request of the HTTP API that had an ``Idempotency-Key``.


class IdempotentRequestQuerySet(GuardedQuerySet["IdempotentRequest"]):
    """The queryset, which mypy's plugin resolves by its name only."""


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
    key = fields.ExactCharField(max_length=200)
    operation = fields.ExactCharField(max_length=200)
    fingerprint = fields.ExactCharField(max_length=64)
    status_code = models.SmallIntegerField(default=0)
    headers = models.JSONField(default=dict)
    body = models.JSONField(null=True)
    created_at = fields.InstantField(db_default=fields.StatementTime(), db_index=True)

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


# BulkOperation: a change of all tasks of a tenant that match a filter, with its progress.


class BulkKind(StrEnum):
    """What is done with the tasks."""

    CANCEL = "CANCEL"
    REPLAY = "REPLAY"


class BulkOperationQuerySet(TenantQuerySet["BulkOperation"]):
    """The queryset, which mypy's plugin resolves by its name only."""


class BulkOperation(GuardedModel):
    """One operation on many tasks, which ``task`` performs in steps.

    Each step reads the tasks after ``last_id`` in the order of their ids, changes those that match,
    and moves ``last_id`` in the same transaction. Tasks with ids above ``until_id`` were created
    after the operation.
    """

    instead: ClassVar[str] = (
        "The HTTP API creates these rows with bulk_operations.start(...), and a durable task"
        " changes them."
    )

    id = models.UUIDField(primary_key=True, default=new_task_id, editable=False)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant", models.PROTECT, db_index=False, related_name="+"
    )
    kind = fields.ExactCharField(_("kind"), max_length=6, choices=fields.choices_of(BulkKind))
    filters = models.JSONField(_("filters"), default=dict)
    task = models.ForeignKey(
        "django_durable_tasks.Task",
        models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    last_id = models.UUIDField(null=True)
    until_id = models.UUIDField()
    matched = models.IntegerField(_("matched"), db_default=0)
    changed = models.IntegerField(_("changed"), db_default=0)
    failed = models.IntegerField(_("failed"), db_default=0)
    errors = models.JSONField(_("errors"), default=list)
    created_by = fields.ExactCharField(_("created by"), max_length=200, blank=True, db_default="")
    reason = fields.ExactCharField(_("reason"), max_length=500, blank=True, db_default="")
    created_at = fields.InstantField(_("created at"), db_default=fields.StatementTime())
    completed_at = fields.InstantField(_("completed at"), null=True, blank=True)

    objects = BulkOperationQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_bulk_operation"
        verbose_name = _("bulk operation")
        verbose_name_plural = _("bulk operations")
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "id"], name="durable_bulk_tenant"),
            models.Index(fields=["created_at"], name="durable_bulk_created"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"
