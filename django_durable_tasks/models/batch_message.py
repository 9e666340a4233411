"""BatchMessage: whether a message for the batches of one task name in one queue is outstanding."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.instants import InstantField


class BatchMessage(models.Model):
    """The last batch message of a task name in a queue.

    ``due_at``: when another one may be published although no worker has received this one. None if
    a worker has received it. ``number``: which message it is; it is sent with the message.
    """

    queue = ExactCharField(_("queue"), max_length=200)
    name = ExactCharField(_("name"), max_length=200)
    due_at = InstantField(_("due at"), null=True)
    publish_count = models.IntegerField(_("publish count"), default=0)
    number = models.BigIntegerField(_("number"), default=0)

    class Meta:
        db_table = "durable_tasks_batch_message"
        verbose_name = _("batch message")
        verbose_name_plural = _("batch messages")
        ordering: ClassVar = ["queue", "name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["queue", "name"], name="durable_one_batch_message"),
        ]

    def __str__(self) -> str:
        return f"{self.name} in {self.queue}"
