"""Operations on the whole installation, which only the command line offers.

Those that work in several transactions write their audit entry before the first of them, and log
their result.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from django.db.models import Count
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.audit import record_start
from django_durable_tasks.celery import publisher
from django_durable_tasks.encryption import current_key_id
from django_durable_tasks.exceptions import BrokerUnavailable, InvalidOption
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.operations.operation import (
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Target,
)
from django_durable_tasks.schedules import sync
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import batches, claim, key_rotation, retention

logger = logging.getLogger("django_durable_tasks.operations")
Progress = Callable[[str], None]
"""Called with a text after each batch."""


def _silent(_text: str) -> None:
    return


@dataclass(slots=True)
class Republished:
    """Messages by queue: those that would be or were published, and those that the broker rejected.

    ``error`` is the reason if publishing stopped early.
    """

    queued: dict[str, int]
    published: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    error: str = ""


@dataclass(slots=True)
class KeyRotation:
    """The progress of a rotation. ``remaining``: rows of each table with another key than the first
    one. ``failed``: rows that could not be decrypted; ``error`` is the first reason.
    """

    remaining: dict[str, int]
    changed: int = 0
    failed: int = 0
    error: str = ""


def _republish(
    tasks: TaskQuerySet,
    *,
    by: str,
    reason: str,
    dry_run: bool = False,
    progress: Progress = _silent,
) -> OperationResult:
    """Publish the QUEUED tasks of a queryset again; ``value`` is a Republished."""
    queued = tasks.queued()
    found = Republished(dict(queued.order_by().values_list("queue").annotate(number=Count("*"))))
    if not dry_run:
        record_start("installation.republish", by=by, reason=reason)
        batches.publish_messages_again()
        total, size = sum(found.queued.values()), conf.settings().BATCH_SIZE
        try:
            for messages in claim.republish_all(queued, size):
                refused = publisher.republish(messages)
                found.published.update(Counter(one.queue for one in messages) - refused)
                found.rejected += refused
                if total > size:
                    progress(f"{found.published.total()} of {total}")
        except BrokerUnavailable as error:
            found.error = str(error)
        _log("republish", found.published.total(), by, reason)
    return OperationResult({"republished": found.published.total()}, value=found)


def _prune(
    _nothing: None, *, by: str, reason: str, dry_run: bool = False, progress: Progress = _silent
) -> OperationResult:
    """Delete ended tasks after their retention; in a dry run ``value`` has their numbers by
    status.
    """
    now, size = database_now(), conf.settings().BATCH_SIZE
    if dry_run:
        return OperationResult({}, value=retention.prunable(now))
    record_start("installation.prune", by=by, reason=reason)
    deleted, positions = 0, retention.PruningPositions()
    while (number := retention.prune(now, size, positions)) > 0:
        deleted += number
        if number == size:
            progress(f"{deleted} deleted")
    _log("prune", deleted, by, reason)
    return OperationResult({"deleted": deleted})


def _sync(
    _nothing: None,
    *,
    by: str,
    reason: str,
    dry_run: bool = False,
    prune: bool = False,
    adopt: bool = False,
) -> OperationResult:
    """Apply the declared schedules to the rows; ``value`` is the list of steps."""
    if dry_run:
        return OperationResult({}, value=sync.diff(prune=prune, adopt=adopt))
    steps = sync.apply(prune=prune, adopt=adopt, by=by)
    done = sum(step.act not in sync.NOTHING_DONE for step in steps)
    _log("sync", done, by, reason)
    return OperationResult({"synced": done}, value=steps)


def _log(name: str, number: int, by: str, reason: str) -> None:
    logger.info("Operation %s has changed %d objects; by: %s; reason: %s", name, number, by, reason)


def _rotate_keys(
    _nothing: None,
    *,
    by: str,
    reason: str,
    dry_run: bool = False,
    include_plain: bool = False,
    progress: Progress = _silent,
) -> OperationResult:
    """Encrypt stored values with the first key; ``value`` is a KeyRotation."""
    if current_key_id() is None:
        raise InvalidOption("DURABLE_TASKS['ENCRYPTION_KEYS'] is empty: nothing is encrypted.")
    found = KeyRotation(key_rotation.remaining())
    if dry_run:
        return OperationResult({}, value=found)
    record_start("installation.rotate_keys", by=by, reason=reason, key=current_key_id())
    expected = sum(found.remaining.values())
    passes = [key_rotation.rotate, *([key_rotation.encrypt_plain] if include_plain else [])]
    for batch in (batch for rotate in passes for batch in rotate()):
        found.changed += batch.changed
        found.failed += batch.failed
        found.error = found.error or batch.error
        progress(f"{found.changed} of {max(expected, found.changed)}")
    found.remaining = key_rotation.remaining()
    _log("rotate_keys", found.changed, by, reason)
    return OperationResult({"rotated": found.changed}, value=found)


_INSTALLATION = "it changes rows of all tenants"
REPUBLISH = Operation(
    target=Target.INSTALLATION,
    name="republish",
    title=_("Republish queued tasks"),
    help=_(
        "Publishes QUEUED tasks again now, for a broker that was flushed or has lost its messages."
    ),
    permission="",
    perform=_republish,
    not_in_api=_INSTALLATION,
    dry_run=True,
    confirm=False,
    not_in_admin="it can publish more messages than a web request has time for",
)
PRUNE = Operation(
    target=Target.INSTALLATION,
    name="prune",
    title=_("Delete ended tasks"),
    help=_("Deletes ended tasks after their retention, in batches. The leader does so regularly."),
    permission="",
    perform=_prune,
    not_in_api=_INSTALLATION,
    dry_run=True,
    confirm=False,
    not_in_admin="it can delete more rows than a web request has time for",
)
SYNC = Operation(
    target=Target.INSTALLATION,
    name="sync",
    title=_("Sync declared schedules"),
    help=_(
        "Creates and changes the rows of schedules that code and settings declare, and pauses"
        " schedules that are no longer declared."
    ),
    permission="",
    perform=_sync,
    not_in_api=_INSTALLATION,
    dry_run=True,
    confirm=False,
    fields=(
        Argument(
            name="prune",
            kind=ArgumentType.FLAG,
            label=_("Prune"),
            help=_("End schedules that are no longer declared instead of pausing them."),
        ),
        Argument(
            name="adopt",
            kind=ArgumentType.FLAG,
            label=_("Adopt"),
            help=_("Take over schedules of the same name that were not created by sync."),
        ),
    ),
    not_in_admin="the web process may run a different release than the deployed one",
)
ROTATE_KEYS = Operation(
    target=Target.INSTALLATION,
    name="rotate_keys",
    title=_("Rotate encryption keys"),
    help=_(
        "Encrypts stored values again with the first key of ENCRYPTION_KEYS, in batches, while the"
        " service runs."
    ),
    permission="",
    perform=_rotate_keys,
    not_in_api=_INSTALLATION,
    dry_run=True,
    confirm=False,
    fields=(
        Argument(
            name="include_plain",
            kind=ArgumentType.FLAG,
            label=_("Include plain rows"),
            help=_("Encrypt rows that were stored before encryption was switched on."),
        ),
    ),
    not_in_admin="it can change more rows than a web request has time for",
)

OPERATIONS = (REPUBLISH, PRUNE, SYNC, ROTATE_KEYS)
