"""QueueControl: the pause of a queue. A queue without a row is not paused."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import ports
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.instants import InstantField


class QueueControlManager(models.Manager["QueueControl"]):
    """QueueControl.objects: pausing and resuming queues by name."""

    def pause(self, name: str, *, by: str = "", reason: str = "") -> None:
        """Stop publishing and starting tasks of this queue until it is resumed. Running tasks
        continue.
        """
        ports.queues.pause(name, by=by, reason=reason)

    def resume(self, name: str, *, by: str = "", reason: str = "") -> bool:
        """Publish the tasks of this queue again; return whether it was paused."""
        return ports.queues.resume(name, by=by, reason=reason)


class QueueControl(models.Model):
    """Whether a queue is paused, since when, by whom and why."""

    name = ExactCharField(_("queue"), primary_key=True, max_length=200)
    paused_at = InstantField(_("paused at"), null=True, blank=True)
    paused_by = ExactCharField(_("paused by"), max_length=200, blank=True, default="")
    reason = ExactCharField(_("reason"), max_length=500, blank=True, default="")

    # The following columns have database defaults, so that nodes of the previous release can
    # continue to write their rows.
    misrouted = models.BigIntegerField(
        _("misrouted messages"),
        db_default=0,
        help_text=_(
            "Messages for tasks of this queue that were consumed from another queue, and started"
            " nothing."
        ),
    )
    misrouted_at = InstantField(_("last misrouted at"), null=True, blank=True)
    misrouted_from = ExactCharField(_("consumed from"), max_length=200, db_default="", blank=True)

    objects = QueueControlManager()

    class Meta:
        db_table = "durable_tasks_queue_control"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        ordering: ClassVar = ["name"]
        permissions: ClassVar = [("pause_queuecontrol", "Can pause and resume")]

    def __str__(self) -> str:
        return self.name
