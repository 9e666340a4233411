"""Nodes, the leader's lease, paused queues, outstanding batch messages, limits of operators, and
the tokens of rate limits.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from enum import StrEnum
from typing import ClassVar, Self

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.limits.scopes import SCOPE_FORMS, Allowance, allowance_of
from django_durable_tasks.models.fields import (
    ExactCharField,
    InstantField,
    StatementTime,
    choice_field,
)

# Node: a scheduler or worker process under its random boot id; a restart is a new node.


TOLD_MAX = 300
"""The number of characters of a state that are stored."""


class NodeKind(StrEnum):
    """The kind of process."""

    SCHEDULER = "SCHEDULER"
    WORKER = "WORKER"


class NodeQuerySet(models.QuerySet["Node"]):
    """The queryset of nodes."""

    def alive(self) -> Self:
        """Nodes that have neither stopped nor been declared dead, without their registered names,
        which may be long, until they are read.
        """
        return self.filter(stopped_at__isnull=True).defer("names")

    def workers(self) -> Self:
        """Live workers that accept tasks; a draining worker is not included."""
        return self.filter(kind=NodeKind.WORKER, draining=False)

    def gone_before(self, cutoff: datetime) -> Self:
        """Nodes that stopped before ``cutoff``."""
        return self.filter(stopped_at__lt=cutoff)


class Node(models.Model):
    """One live or stopped process; ``beats`` counts its heartbeats, from which other nodes detect
    that it is dead.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = ExactCharField(_("name"), max_length=255)
    kind = choice_field(_("kind"), NodeKind, 9)
    host = ExactCharField(_("host"), max_length=255)
    pid = models.IntegerField(_("process id"))
    version = ExactCharField(_("version"), max_length=50)
    pool = ExactCharField(_("pool"), max_length=50, blank=True, default="")
    concurrency = models.IntegerField(_("concurrency"), default=0)
    queues = models.JSONField(_("queues"), default=list)
    beats = models.BigIntegerField(_("beats"), default=0)
    started_at = InstantField(_("started at"))
    last_seen_at = InstantField(_("last seen at"))
    stopped_at = InstantField(_("stopped at"), null=True, blank=True)
    declared_dead = models.BooleanField(_("declared dead"), default=False)
    # The following columns have database defaults, so that nodes of the previous release can
    # continue to write their rows.
    region = ExactCharField(_("region"), max_length=50, db_default="", blank=True)
    shards = models.JSONField(_("shards"), null=True, blank=True, help_text=_("Empty: all."))
    keeps_to_shards = models.BooleanField(_("keeps to its shards"), db_default=False)
    versions = models.JSONField(_("versions"), null=True, blank=True)
    active = models.JSONField(
        _("running tasks"),
        null=True,
        blank=True,
        help_text=_(
            "Number, and up to 20 ids; messages that were received and not started, starts per"
            " second, and queues with messages that belong to no task."
        ),
    )
    last_scan_at = InstantField(_("last scan at"), null=True, blank=True)
    last_start_at = InstantField(_("last start at"), null=True, blank=True)
    skew = models.FloatField(
        _("skew"),
        null=True,
        blank=True,
        help_text=_("Seconds by which the host's clock is ahead of the database's."),
    )
    draining = models.BooleanField(_("draining"), db_default=False)
    index_state = ExactCharField(
        _("due index"),
        max_length=TOLD_MAX,
        db_default="",
        blank=True,
        help_text=_(
            "Where a scheduler finds what is due next, or why and how often it polls for it."
        ),
    )
    wakeups_state = ExactCharField(
        _("wake-ups"),
        max_length=TOLD_MAX,
        db_default="",
        blank=True,
        help_text=_("What wakes a scheduler when rows are due soon, or why nothing does."),
    )
    failing = models.JSONField(
        _("failing"),
        null=True,
        blank=True,
        help_text=_(
            "Parts of a scheduler that fail: what, the error, how often in a row and for how many"
            " seconds."
        ),
    )

    rejected_queues = models.JSONField(
        _("rejected queues"),
        null=True,
        blank=True,
        help_text=_("Queues whose messages the broker rejects, with its reason."),
    )

    clock_step = models.FloatField(
        _("clock step"),
        null=True,
        blank=True,
        help_text=_(
            "By how many seconds the database's clock was set when this leader noticed it last;"
            " negative: back."
        ),
    )
    clock_step_at = InstantField(_("clock step at"), null=True, blank=True)

    # The names are written when they change, and read once by each process (names_digest): a worker
    # may have thousands of them.
    names = models.JSONField(
        _("registered tasks"),
        null=True,
        blank=True,
        help_text=_(
            "Names of the durable tasks that a worker has registered. Empty: not reported."
        ),
    )
    names_digest = ExactCharField(max_length=32, db_default="", blank=True, editable=False)

    broker_outages = models.IntegerField(
        _("broker outages"),
        db_default=0,
        help_text=_("How often the node lost the broker and could use it again."),
    )

    objects = NodeQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_node"
        verbose_name = _("node")
        verbose_name_plural = _("nodes")
        ordering: ClassVar = ["-last_seen_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


# SchedulerLease: the leader of a region. ``migrate`` creates the row, so acquiring the lease is an
# UPDATE.


_LEADER = "leader"
LONG_EXPIRED = datetime(2000, 1, 1, tzinfo=UTC)
"""``expires_at`` of a lease that no scheduler has owned yet."""


def lease_name(region: str | None = None) -> str:
    """Return the name of the lease of a region, by default of this process's region."""
    region = conf.settings().REGION if region is None else region
    return f"{_LEADER}@{region}" if region else _LEADER


def region_of(name: str) -> str:
    """Return the region of the lease with this name."""
    return name.partition("@")[2]


class SchedulerLease(models.Model):
    """A lease, its owner and its term. The term only grows; it fences the leader's writes."""

    name = ExactCharField(_("name"), primary_key=True, max_length=100)
    holder = models.UUIDField(_("holder"), null=True)
    term = models.BigIntegerField(_("term"), default=0)
    acquired_at = InstantField(_("acquired at"), null=True)
    expires_at = InstantField(_("expires at"))

    class Meta:
        db_table = "durable_tasks_scheduler_lease"
        verbose_name = _("scheduler lease")
        verbose_name_plural = _("scheduler leases")
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return f"{self.name}, term {self.term}"


# QueueControl: the pause of a queue. A queue without a row is not paused.


class QueueControlManager(models.Manager["QueueControl"]):
    """QueueControl.objects: pausing and resuming queues by name."""

    def pause(self, name: str, *, by: str = "", reason: str = "") -> None:
        """Stop publishing and starting tasks of this queue until it is resumed. Running tasks
        continue.
        """
        from django_durable_tasks.cluster import queues

        queues.pause(name, by=by, reason=reason)

    def resume(self, name: str, *, by: str = "", reason: str = "") -> bool:
        """Publish the tasks of this queue again; return whether it was paused."""
        from django_durable_tasks.cluster import queues

        return queues.resume(name, by=by, reason=reason)


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


# BatchMessage: whether a message for the batches of one task name in one queue is outstanding.


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
            models.UniqueConstraint(fields=["queue", "name"], name="durable_one_batch_message")
        ]

    def __str__(self) -> str:
        return f"{self.name} in {self.queue}"


# Limit: an operator's limits of one scope. A row overrides code and settings.


class Limit(models.Model):
    """The concurrency limit and the rate limit of one scope."""

    scope = ExactCharField(
        _("scope"), primary_key=True, max_length=240, help_text=f"{SCOPE_FORMS}."
    )
    max_concurrency = models.IntegerField(
        _("max concurrency"),
        null=True,
        blank=True,
        help_text=_("How many may be published or run at once."),
    )
    rate = ExactCharField(
        _("rate"),
        max_length=20,
        blank=True,
        default="",
        help_text=_("Starts in a time: 10/m, 5/s, 100/h, 1000/d."),
    )
    burst = models.FloatField(
        _("burst"),
        null=True,
        blank=True,
        help_text=_("How many may start at once after a pause; else one second's."),
    )
    comment = ExactCharField(_("comment"), max_length=500, blank=True, default="")
    set_by = ExactCharField(_("set by"), max_length=200, blank=True, default="")
    set_at = InstantField(_("set at"), db_default=StatementTime(), editable=False)

    class Meta:
        db_table = "durable_tasks_limit"
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        ordering: ClassVar = ["scope"]

    def __str__(self) -> str:
        return self.scope

    @property
    def allowance(self) -> Allowance:
        """The limits as an allowance; raises InvalidOption."""
        options = {
            "max_concurrency": self.max_concurrency,
            "rate": self.rate or None,
            "burst": self.burst,
        }
        return allowance_of(self.scope, options)

    def clean(self) -> None:
        """Raise a ValidationError for an invalid limit."""
        if self.max_concurrency is None and not self.rate:
            raise ValidationError(_("Give a max concurrency, a rate, or both."))
        try:
            _allowance = self.allowance
        except InvalidOption as refused:
            raise ValidationError(str(refused)) from None


# LimitBucket: the tokens of what has a rate. The row with the scope "" is the lock of all limits.


LOCK = ""
"""The row that a claim locks while it checks limits, so that the limited claims of all nodes are
serialized.
"""


class LimitBucket(models.Model):
    """The tokens of a scope at ``refilled_at``, by the database's clock: at the last claim.

    The HTTP API counts the requests of a tenant in the scope ``requests:<id>``. Its bucket is full
    at ``refilled_at``, which may be in the future.
    """

    scope = ExactCharField(_("scope"), primary_key=True, max_length=240)
    tokens = models.FloatField(_("tokens"), default=0.0)
    refilled_at = InstantField(_("refilled at"), null=True)

    class Meta:
        db_table = "durable_tasks_limit_bucket"
        verbose_name = _("token bucket")
        verbose_name_plural = _("token buckets")
        ordering: ClassVar = ["scope"]

    def __str__(self) -> str:
        return self.scope
