"""The recorded messages of Celery beat."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.fields import ExactCharField, InstantField, StatementTime


class ShadowFire(models.Model):
    """One message of Celery beat: the name of its entry, its task, and the database's time at which
    it was recorded.
    """

    id = models.BigAutoField(primary_key=True)
    name = ExactCharField(_("name"), max_length=200)
    task = ExactCharField(_("task"), max_length=200)
    celery_id = ExactCharField(_("Celery id"), max_length=200, blank=True, default="")
    recorded_at = InstantField(_("recorded at"), db_default=StatementTime())

    class Meta:
        db_table = "durable_tasks_shadow_fire"
        verbose_name = _("fire of beat")
        verbose_name_plural = _("fires of beat")
        ordering: ClassVar = ["id"]
        indexes: ClassVar = [models.Index(fields=["recorded_at"], name="durable_shadow_recorded")]

    def __str__(self) -> str:
        return self.name
