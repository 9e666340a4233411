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
from django_durable_tasks.rules.recurring.policies import Fate

LOOKED_AT = 100
MARKS = 7
_DAY = timedelta(days=1)
MISSED = frozenset({Fate.MISSED, Fate.EXPIRED, Fate.FAILED_TO_CREATE})
SKIPPED = frozenset({Fate.SKIPPED_OVERLAP, Fate.SKIPPED_CALENDAR})
_COLUMNS = ("recurring_task_id", "id", "fire_time", "last_fire_time", "outcome", "count", "task_id")


@dataclass(frozen=True, slots=True)
class Mark:
    """One of the last fire times: the status of its task, or the outcome in the ledger."""

    word: str
    fire_time: datetime
    count: int


@dataclass(frozen=True, slots=True)
class Recent:
    """The last outcomes, the newest last, and how many fire times of the last day did not run;
    unless ``exact`` a lower bound.
    """

    marks: tuple[Mark, ...] = ()
    missed: int = 0
    skipped: int = 0
    exact: bool = True


def recent(rows: Sequence[RecurringTask], now: datetime) -> dict[uuid.UUID, Recent]:
    """Return the outcomes of the last fire times of each of these schedules; three statements."""
    if not rows:
        return {}
    lines: dict[uuid.UUID, list[Any]] = defaultdict(list)
    for line in _lines([row.pk for row in rows]).values_list(*_COLUMNS, named=True):
        lines[line.recurring_task_id].append(line)
    newest = {
        pk: sorted(found, key=lambda line: (line.fire_time, line.id)) for pk, found in lines.items()
    }
    statuses = _statuses(line.task_id for found in newest.values() for line in found[-MARKS:])
    return {pk: _recent(found, statuses, now - _DAY) for pk, found in newest.items()}


def _lines(keys: Sequence[uuid.UUID]) -> QuerySet[OccurrenceRecord]:
    """Return the newest entries of each schedule: of single fire times, and of ranges and manual
    runs.
    """
    database = conf.settings().DATABASE
    ledger = OccurrenceRecord.objects.filter(recurring_task=OuterRef("pk"))
    single = ledger.single().order_by("-unique_fire_time").values("unique_fire_time")
    other = ledger.filter(unique_fire_time__isnull=True).order_by("-fire_time").values("fire_time")
    floors = (
        RecurringTask.objects.using(database)
        .filter(pk__in=keys)
        .annotate(
            single_from=Subquery(single[LOOKED_AT - 1 : LOOKED_AT]),
            other_from=Subquery(other[LOOKED_AT - 1 : LOOKED_AT]),
        )
    )
    told = list(floors.order_by().values_list("pk", "single_from", "other_from"))
    asked = [
        *_from(
            {pk: single for pk, single, _other in told},
            "unique_fire_time__gte",
            unique_fire_time__isnull=False,
        ),
        *_from(
            {pk: other for pk, _single, other in told},
            "fire_time__gte",
            unique_fire_time__isnull=True,
        ),
    ]
    return (
        OccurrenceRecord.objects.using(database)
        .filter(functools.reduce(operator.or_, asked))
        .order_by()
    )


def _from(floors: dict[uuid.UUID, datetime | None], above: str, **kind: Any) -> Iterator[Q]:
    """Yield one query per lower bound by the index of this kind of entries, and one for all
    schedules without a bound.
    """
    yield Q(recurring_task__in=[key for key, floor in floors.items() if floor is None], **kind)
    for key, floor in floors.items():
        if floor is not None:
            yield Q(recurring_task=key, **{above: floor}, **kind)


def _statuses(keys: Iterable[uuid.UUID | None]) -> dict[uuid.UUID, str]:
    tasks = Task.objects.using(conf.settings().DATABASE).filter(
        pk__in={key for key in keys if key is not None}
    )
    return dict(tasks.values_list("pk", "status"))


def _recent(lines: list[Any], statuses: dict[uuid.UUID, str], since: datetime) -> Recent:
    today = [line for line in lines if (line.last_fire_time or line.fire_time) >= since]
    return Recent(
        tuple(
            Mark(statuses.get(line.task_id, line.outcome), line.fire_time, line.count)
            for line in lines[-MARKS:]
        ),
        sum(line.count for line in today if line.outcome in MISSED),
        sum(line.count for line in today if line.outcome in SKIPPED),
        len(today) < LOOKED_AT,
    )
