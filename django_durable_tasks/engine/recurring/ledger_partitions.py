"""Partitions of the ledger by fire time, on PostgreSQL: created ahead, and dropped as a whole after
the retention.

The unique key over (recurring task, fire time) contains the partition key, so it holds over all
partitions. An entry for which no partition exists is stored in the default partition, and so are
ranges and manual runs, which have no unique fire time.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, connections

from django_durable_tasks import conf
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.engine.metrics.dropped_partitions import count_dropped_partition
from django_durable_tasks.engine.recurring.ledger import ledger
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import OccurrenceRecord
from django_durable_tasks.rules.recurring import partitions as rules
from django_durable_tasks.rules.recurring.partitions import Partition

logger = logging.getLogger("django_durable_tasks.scheduler")

_SCHEDULES = 5_000
"""Schedules whose ``ledger_from`` one statement changes."""
_GRACE_PERIODS = 2
"""Periods after the retention in which a partition is dropped before its entries are deleted."""


def partitions() -> list[Partition]:
    """Return the partitions of the ledger in the order of time, the default one last; none if it is
    not partitioned. One statement on PostgreSQL, none elsewhere.
    """
    sql = statement("ledger_partitions")
    return [] if sql is None else [Partition._make(row) for row in tables.read(sql, {})]


def wanted_days() -> int | None:
    """Return the days of a partition, if partitions are enabled and this database has them."""
    days = conf.settings().LEDGER_PARTITION_DAYS
    return days if days and connections[tables.database()].vendor == "postgresql" else None


def grace() -> timedelta:
    """Return how long after the retention the entries of a partition are left to be dropped with
    it.
    """
    return timedelta(days=_GRACE_PERIODS * (wanted_days() or 0))


def maintain(now: datetime) -> int:
    """Create the partitions of the next week and drop at most one whose retention is over; return
    how many were changed. Does nothing unless LEDGER_PARTITION_DAYS is set and the ledger is
    partitioned.
    """
    days = wanted_days()
    existing = partitions() if days else []
    if not days or not existing:
        return 0
    return create_missing(existing, now, days) + drop_expired(existing, now)


def create_missing(existing: list[Partition], now: datetime, days: int) -> int:
    """Create the missing partitions, each in a transaction; return how many."""
    created = 0
    for partition in rules.missing(existing, now, days):
        try:
            with tables.atomic():
                _execute("create_ledger_partition", partition)
        except DatabaseError as error:
            # A lock that was not free within half a second, for example. The next call tries again.
            logger.warning("Partition %s was not created: %s", partition.name, error)
            break
        logger.info("Created partition %s of the ledger, until %s.", partition.name, partition.end)
        created += 1
    return created


def drop_expired(existing: list[Partition], now: datetime) -> int:
    """Drop the oldest partition whose entries are all older than LEDGER_RETENTION; return how many
    (0 or 1).

    Under a lock, one statement reads the partition and raises ``ledger_from`` of each of its
    schedules, so that neither a tick nor a backfill repeats a fire time of the partition. If there
    are more than 5,000 schedules, each call raises it for 5,000 of them, returns 1, and the next
    call continues. A partition that cannot be dropped is left to ``prune_ledger``, which deletes
    its entries.
    """
    cutoff = now - timedelta(seconds=conf.settings().LEDGER_RETENTION)
    for partition in rules.expired(existing, cutoff):
        if _dropped(partition, cutoff):
            return 1
    return 0


def _dropped(partition: Partition, cutoff: datetime) -> bool:
    """Drop the partition if it has expired; return whether that, or a part of it, was done."""
    try:
        newest_is_old = _read("ledger_partition_expired", partition, cutoff=cutoff)
        if newest_is_old == [(False,)]:
            return False
        with tables.atomic():
            _execute("lock_ledger_partition", partition)
            ((is_young, uncovered, raised),) = _read(
                "cover_ledger_partition", partition, cutoff=cutoff, limit=_SCHEDULES
            )
            if is_young or raised < uncovered:
                return bool(raised == _SCHEDULES)
            _execute("drop_ledger_partition", partition)
            count_dropped_partition()
    except DatabaseError as error:
        logger.warning("Partition %s was not dropped: %s", partition.name, error)
        return False
    logger.info("Dropped partition %s of the ledger: its retention is over.", partition.name)
    return True


def _for(name: str, partition: Partition) -> str:
    """Return a statement with the name and the bounds of a partition, which PostgreSQL does not
    accept as parameters. All of them are computed by ``rules.recurring.partitions``.
    """
    first, end = (f"'{bound.isoformat()}'" if bound else "" for bound in partition[1:])
    return (statement(name) or "").format(name=partition.name, first=first, end=end)


def _read(name: str, partition: Partition, **parameters: Any) -> list[tuple[Any, ...]]:
    return tables.read(_for(name, partition), parameters)


def _execute(name: str, partition: Partition) -> None:
    _run(_for(name, partition))


def _run(sql: str) -> None:
    """Execute statements one by one, because a prepared text can contain only one."""
    with connections[tables.database()].cursor() as cursor:
        for one in sql.split(";\n"):
            if one.strip():
                cursor.execute(one)


# The conversion -----------------------------------------------------------------------------------


class LedgerSize(NamedTuple):
    """The estimated number of entries, their size in bytes with indexes, and the number of entries
    that the conversion moves to the default partition.
    """

    entries: int
    in_bytes: int
    moved: int


def size(now: datetime) -> LedgerSize:
    """Return the size of the table that would be converted at ``now``. Raises as
    ``check_convertible`` does.
    """
    bound = rules.period_end(now, check_convertible())
    (row,) = tables.read(statement("ledger_size") or "", {"bound": bound})
    return LedgerSize._make(row)


def check_convertible() -> int:
    """Return the days of a partition. Raises InvalidOption if partitions are not enabled, exist
    already, or if other objects of the database refer to the table.
    """
    days = wanted_days()
    if days is None:
        raise InvalidOption(
            "The ledger is partitioned on PostgreSQL only, and if"
            " DURABLE_TASKS['LEDGER_PARTITION_DAYS'] is set, to 7 for example."
        )
    if partitions():
        raise InvalidOption("The ledger is already partitioned.")
    if found := [name for (name,) in tables.read(statement("ledger_dependents") or "", {})]:
        raise InvalidOption(
            f"These objects refer to durable_tasks_occurrence: {', '.join(found)}. Drop them,"
            " partition the ledger, then create them again."
        )
    return days


def convert(now: datetime) -> list[Partition]:
    """Make the ledger a partitioned table whose first partition is the existing table; return its
    partitions.

    Blocks the ledger while the existing entries are read. Raises as ``check_convertible``
    does.
    """
    days = check_convertible()
    for name in ("prepare_ledger", "validate_ledger"):
        with tables.atomic():
            _run(statement(name) or "")
    bound = rules.period_end(now, days)
    with tables.atomic():
        _run((statement("partition_ledger") or "").format(bound=f"'{bound.isoformat()}'"))
    create_missing(partitions(), now, days)
    return partitions()


def after_migrate(*, using: str, **_: Any) -> None:
    """Partition the empty ledger of a new project; a receiver of ``post_migrate``.

    If it cannot be partitioned, a warning is logged and the ledger remains a plain table.
    """
    if using != tables.database() or not wanted_days() or partitions():
        return
    names = connections[using].introspection.table_names()
    if OccurrenceRecord._meta.db_table in names and not ledger().exists():
        try:
            convert(database_now())
        except (InvalidOption, DatabaseError) as error:
            logger.warning("The ledger was not partitioned: %s", error)
