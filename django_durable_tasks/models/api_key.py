"""ApiKey: a key with which a program uses the HTTP API as one tenant."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.rules.tenants.api_keys import KeyMode


class ApiKeyQuerySet(GuardedQuerySet["ApiKey"]):
    """The queryset of API keys."""

    def for_tenant(self, tenant: Any) -> Self:
        """Keys of this tenant (a Tenant or its id)."""
        return self.filter(tenant_id=getattr(tenant, "pk", tenant))

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
    name = ExactCharField(
        _("name"), max_length=100, help_text=_("What uses the key. A rotation keeps the name.")
    )
    identifier = ExactCharField(_("id"), max_length=8, unique=True)
    mode = ExactCharField(
        _("mode"), max_length=4, choices=[(mode.value, mode.value) for mode in KeyMode]
    )
    digest = ExactCharField(max_length=64, editable=False)
    scopes = models.JSONField(_("scopes"), default=list)
    created_at = InstantField(_("created at"), db_default=StatementTime())
    created_by = ExactCharField(_("created by"), max_length=200, blank=True, default="")
    expires_at = InstantField(_("expires at"), null=True, blank=True)
    revoked_at = InstantField(_("revoked at"), null=True, blank=True)
    revoked_by = ExactCharField(_("revoked by"), max_length=200, blank=True, default="")
    reason = ExactCharField(_("reason"), max_length=500, blank=True, default="")
    last_used_at = InstantField(_("last used at"), null=True, blank=True)

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
