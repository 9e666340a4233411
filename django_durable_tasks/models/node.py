"""Node: a scheduler or worker process under its random boot id; a restart is a new node."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.instants import InstantField

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
    kind = ExactCharField(_("kind"), max_length=9, choices=[(k.value, k.value) for k in NodeKind])
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
