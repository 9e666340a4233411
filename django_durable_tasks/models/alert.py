"""Alert: a condition of the whole installation that holds now."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.instants import InstantField


class AlertQuerySet(GuardedQuerySet["Alert"]):
    """The queryset of alerts."""


class Alert(GuardedModel):
    """A condition that began and has not ended. The row is deleted when it ends, so that a new
    leader sends neither event again. ``subject`` is the queue, schedule or host.
    """

    instead: ClassVar[str] = "alerts.watch(...) in the leader's job watch_alerts writes it."

    id = models.BigAutoField(primary_key=True)
    kind = ExactCharField(_("kind"), max_length=30)
    subject = ExactCharField(_("subject"), max_length=200, blank=True, default="")
    detail = ExactCharField(_("detail"), max_length=300, blank=True, default="")
    since = InstantField(_("since"), db_default=StatementTime())
    last_seen_at = InstantField(_("last seen at"), db_default=StatementTime())

    objects = AlertQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_alert"
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["kind", "subject"], name="durable_alert_once")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}".strip()
