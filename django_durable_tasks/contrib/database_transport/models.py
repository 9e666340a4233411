"""The tables of the broker: messages, queues, exchanges, bindings, and consumers with their leases.

No foreign key has a constraint: each INSERT of a message would lock the row of its queue until the
transaction of the caller ends, and on MySQL and MariaDB this would stop the renewal of the queue.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.fields import ExactCharField, InstantField, PartialIndex

# Characters. RabbitMQ allows 255 bytes.
LONGEST_NAME = 255


class Consumer(models.Model):
    """A connection that consumes. A message that it holds is leased until ``expires_at``.

    One lease for all messages of a connection: its renewal is one UPDATE however many they are.
    """

    id = models.BigIntegerField(primary_key=True)
    expires_at = InstantField(_("expires at"))
    hostname = ExactCharField(_("host"), max_length=255)
    process_id = models.BigIntegerField(_("process"))
    node = models.UUIDField(
        _("node"), null=True, help_text=_("Its death ends the lease. Empty outside of workers.")
    )

    class Meta:
        verbose_name = _("consumer of the broker")
        verbose_name_plural = _("consumers of the broker")
        db_table = "durable_tasks_transport_consumer"

    def __str__(self) -> str:
        return f"{self.process_id}@{self.hostname}"


class Queue(models.Model):
    """A declared queue."""

    name = ExactCharField(_("name"), max_length=LONGEST_NAME, unique=True)
    auto_delete = models.BooleanField(
        _("auto delete"), default=False, help_text=_("Deleted when its consumer has gone.")
    )
    message_ttl = models.BigIntegerField(
        _("time to live of messages"), null=True, help_text=_("Milliseconds.")
    )
    expires = models.BigIntegerField(
        _("expires"), null=True, help_text=_("Milliseconds without use after which it is deleted.")
    )
    consumer = models.BigIntegerField(
        _("consumer"), null=True, help_text=_("The last consumer of a queue that can expire.")
    )
    unused_until = InstantField(
        _("unused until"), null=True, help_text=_("When it is deleted if it has no consumer.")
    )

    class Meta:
        verbose_name = _("queue of the broker")
        verbose_name_plural = _("queues of the broker")
        db_table = "durable_tasks_transport_queue"

    def __str__(self) -> str:
        return self.name


class Exchange(models.Model):
    """A declared exchange."""

    name = ExactCharField(_("name"), max_length=LONGEST_NAME, unique=True)
    type = ExactCharField(_("type"), max_length=20)

    class Meta:
        verbose_name = _("exchange of the broker")
        verbose_name_plural = _("exchanges of the broker")
        db_table = "durable_tasks_transport_exchange"

    def __str__(self) -> str:
        return self.name


class Binding(models.Model):
    """A binding of a queue to an exchange."""

    exchange = models.BigIntegerField(_("exchange"))
    queue = models.BigIntegerField(_("queue"))
    routing_key = ExactCharField(_("routing key"), max_length=LONGEST_NAME, blank=True)
    arguments = models.JSONField(_("arguments"), default=dict)
    # Routing keys are too long for a unique index over all columns on MySQL.
    digest = ExactCharField(_("digest"), max_length=64, unique=True)

    class Meta:
        verbose_name = _("binding of the broker")
        verbose_name_plural = _("bindings of the broker")
        db_table = "durable_tasks_transport_binding"
        indexes = [
            models.Index(fields=["exchange", "routing_key"], name="durable_transport_route"),
            models.Index(fields=["queue"], name="durable_transport_bound"),
        ]

    def __str__(self) -> str:
        return self.routing_key


class Message(models.Model):
    """A message in a queue. It is deleted when its consumer acknowledges it.

    No index contains ``consumer`` or ``deliveries``, so that a claim on PostgreSQL is a HOT update.
    """

    id = models.BigAutoField(primary_key=True)
    queue = models.BigIntegerField(_("queue"))
    rank = models.SmallIntegerField(_("rank"), help_text=_("9 - priority: lower is first."))
    consumer = models.BigIntegerField(
        _("consumer"), null=True, help_text=_("Who holds it. 0: it cannot be read.")
    )
    deliveries = models.IntegerField(_("deliveries"), default=0)
    expires_at = InstantField(_("expires at"), null=True)
    body = models.TextField(_("message"))

    class Meta:
        verbose_name = _("message of the broker")
        verbose_name_plural = _("messages of the broker")
        db_table = "durable_tasks_transport_message"
        indexes = [
            models.Index(fields=["queue", "rank", "id"], name="durable_transport_ready"),
            PartialIndex(
                fields=["expires_at"],
                where=models.Q(expires_at__isnull=False),
                name="durable_transport_expired",
            ),
        ]

    def __str__(self) -> str:
        return str(self.pk)
