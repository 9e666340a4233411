"""The outcomes of the last fire times of the schedules on one page of a list.

At most LOOKED_AT entries of each schedule are read, with a fixed number of statements per page.
"""

from __future__ import annotations

import functools
import operator
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery

from django_durable_tasks import conf
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.rules.recurring.policies import FireOutcome

LOOKED_AT = 100
MARKS = 7
_DAY = timedelta(days=1)
MISSED = frozenset({FireOutcome.MISSED, FireOutcome.EXPIRED, FireOutcome.FAILED_TO_CREATE})
SKIPPED = frozenset(
    {FireOutcome.SKIPPED_OVERLAP, FireOutcome.SKIPPED_CALENDAR, FireOutcome.SKIPPED_QUOTA}
)
_COLUMNS = ("recurring_task_id", "id", "fire_time", "last_fire_time", "outcome", "count", "task_id")


@dataclass(frozen=True, slots=True)
class OutcomeMark:
    """One of the last fire times: the status of its task, or the outcome in the ledger."""

    word: str
    fire_time: datetime
    count: int


@dataclass(frozen=True, slots=True)
class RecentOutcomes:
    """The last outcomes, the newest last, and how many fire times of the last day did not run;
    unless ``exact`` a lower bound.
    """

    marks: tuple[OutcomeMark, ...] = ()
    missed: int = 0
    skipped: int = 0
    exact: bool = True


def recent(rows: Sequence[RecurringTask], now: datetime) -> dict[uuid.UUID, RecentOutcomes]:
    """Return the outcomes of the last fire times of each of these schedules; three statements."""
    if not rows:
        return {}
    entries: dict[uuid.UUID, list[Any]] = defaultdict(list)
    for entry in _newest_entries([row.pk for row in rows]).values_list(*_COLUMNS, named=True):
        entries[entry.recurring_task_id].append(entry)
    newest = {
        pk: sorted(found, key=lambda entry: (entry.fire_time, entry.id))
        for pk, found in entries.items()
    }
    statuses = _statuses(entry.task_id for found in newest.values() for entry in found[-MARKS:])
    return {pk: _recent(found, statuses, now - _DAY) for pk, found in newest.items()}


def _newest_entries(keys: Sequence[uuid.UUID]) -> QuerySet[OccurrenceRecord]:
    """Return the newest entries of each schedule: of single fire times, and of ranges and manual
    runs.
    """
    database = conf.settings().DATABASE
    ledger = OccurrenceRecord.objects.filter(recurring_task=OuterRef("pk"))
    single = ledger.single().order_by("-unique_fire_time").values("unique_fire_time")
    other = ledger.filter(unique_fire_time__isnull=True).order_by("-fire_time").values("fire_time")
    lower_bounds = (
        RecurringTask.objects.using(database)
        .filter(pk__in=keys)
        .annotate(
            single_from=Subquery(single[LOOKED_AT - 1 : LOOKED_AT]),
            other_from=Subquery(other[LOOKED_AT - 1 : LOOKED_AT]),
        )
    )
    bounds = list(lower_bounds.order_by().values_list("pk", "single_from", "other_from"))
    conditions = [
        *_from(
            {pk: single for pk, single, _other in bounds},
            "unique_fire_time__gte",
            unique_fire_time__isnull=False,
        ),
        *_from(
            {pk: other for pk, _single, other in bounds},
            "fire_time__gte",
            unique_fire_time__isnull=True,
        ),
    ]
    return (
        OccurrenceRecord.objects.using(database)
        .filter(functools.reduce(operator.or_, conditions))
        .order_by()
    )


def _from(lower_bounds: dict[uuid.UUID, datetime | None], above: str, **kind: Any) -> Iterator[Q]:
    """Yield one query per lower bound by the index of this kind of entries, and one for all
    schedules without a bound.
    """
    yield Q(
        recurring_task__in=[
            key for key, lower_bound in lower_bounds.items() if lower_bound is None
        ],
        **kind,
    )
    for key, lower_bound in lower_bounds.items():
        if lower_bound is not None:
            yield Q(recurring_task=key, **{above: lower_bound}, **kind)


def _statuses(keys: Iterable[uuid.UUID | None]) -> dict[uuid.UUID, str]:
    tasks = Task.objects.using(conf.settings().DATABASE).filter(
        pk__in={key for key in keys if key is not None}
    )
    return dict(tasks.values_list("pk", "status"))


def _recent(entries: list[Any], statuses: dict[uuid.UUID, str], since: datetime) -> RecentOutcomes:
    today = [entry for entry in entries if (entry.last_fire_time or entry.fire_time) >= since]
    return RecentOutcomes(
        tuple(
            OutcomeMark(statuses.get(entry.task_id, entry.outcome), entry.fire_time, entry.count)
            for entry in entries[-MARKS:]
        ),
        sum(entry.count for entry in today if entry.outcome in MISSED),
        sum(entry.count for entry in today if entry.outcome in SKIPPED),
        len(today) < LOOKED_AT,
    )
