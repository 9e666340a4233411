"""Alerts: conditions of the whole installation, with one event when one begins and one when it
ends.

The open alerts are rows, so that a new leader repeats no event. A condition ends when it did not
hold for CALM seconds, so that one that comes and goes is one alert.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from django.db import IntegrityError

from django_durable_tasks import conf
from django_durable_tasks.engine.cluster import health, queues
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.notification_events.capture import OccurredEvent, record_events
from django_durable_tasks.engine.notification_events.subscriptions import (
    Subscriptions,
    subscriptions,
)
from django_durable_tasks.engine.recurring.schedules import recurring
from django_durable_tasks.engine.tasks import dead_letters
from django_durable_tasks.models import DEFAULT_TENANT_ID, Alert, Node
from django_durable_tasks.models.alert import AlertQuerySet
from django_durable_tasks.rules.notifications.events import EventType
from django_durable_tasks.rules.notifications.message_types import AlertData, AlertKind
from django_durable_tasks.rules.notifications.subscriptions import EventSubject
from django_durable_tasks.rules.recurring.policies import RecurringStatus

CALM = 60.0
"""Seconds."""
_TOGETHER = 100
"""How many alerts of one kind are open at most."""
_SUBJECT_MAX, _DETAIL_MAX = 200, 300
_ALERT_TYPES = (EventType.ALERT_BEGAN, EventType.ALERT_ENDED)


Condition = tuple[str, str]
"""A kind and its subject; the subject of a schedule is its id."""


def watch(now: datetime) -> int:
    """Open and close alerts; return how many. Nothing is read unless a setting has ``on_alert``, or
    alerts are open.
    """
    found = subscriptions()
    selected = not found.types.isdisjoint(_ALERT_TYPES)
    if not selected and not _alerts().exists():
        return 0
    present = dict(conditions(now)) if selected else {}
    try:
        with tables.atomic():
            return _changed(found, present, now, CALM if selected else 0.0)
    except IntegrityError:
        # Another scheduler opened one of these alerts at the same time. The next call sees it.
        return 0


def _changed(
    found: Subscriptions, present: Mapping[Condition, str], now: datetime, calm: float
) -> int:
    """Write the difference between the open alerts and the present conditions, with its events."""
    rows = tables.locked_for_change(_alerts().order_by("pk"))
    known = {(row.kind, row.subject): row for row in rows}
    began = {one: detail for one, detail in present.items() if one not in known}
    held = [row.pk for one, row in known.items() if one in present]
    calm_since = now - timedelta(seconds=calm)
    ended = [
        row for one, row in known.items() if one not in present and row.last_seen_at <= calm_since
    ]
    if held:
        _alerts().filter(pk__in=held).update(last_seen_at=now)
    _alerts().bulk_create(
        [
            Alert(kind=kind, subject=subject, detail=detail, since=now, last_seen_at=now)
            for (kind, subject), detail in began.items()
        ]
    )
    _alerts().filter(pk__in=[row.pk for row in ended]).delete()
    record_events(found, _events(began, ended))
    return len(began) + len(ended)


def _alerts() -> AlertQuerySet:
    found: AlertQuerySet = Alert.objects.using(tables.database())
    return found.unguarded()


def _events(began: Mapping[Condition, str], ended: list[Alert]) -> Iterator[OccurredEvent]:
    for (kind, subject), detail in began.items():
        yield _event(EventType.ALERT_BEGAN, kind, subject, detail)
    for row in ended:
        yield _event(EventType.ALERT_ENDED, row.kind, row.subject, row.detail)


def _event(type_: EventType, kind: str, subject: str, detail: str) -> OccurredEvent:
    data: AlertData = {"alert": AlertKind(kind), "subject": subject, "detail": detail}
    queue = subject if kind == AlertKind.QUEUE_WITHOUT_WORKER else ""
    return OccurredEvent(
        types=(type_,),
        subject=EventSubject(tenant_id=DEFAULT_TENANT_ID, task_name="", queue=queue),
        shown_as=f"{kind} {subject}".strip(),
        data=data,
    )


def conditions(now: datetime) -> Iterator[tuple[Condition, str]]:
    """Yield the conditions that hold now, each with a sentence about it, at most 100 of a kind."""
    for kind, found in _CHECKS.items():
        for number, (subject, detail) in enumerate(found(now)):
            if number >= _TOGETHER:
                break
            yield (kind.value, subject[:_SUBJECT_MAX]), detail[:_DETAIL_MAX]


def _dead_letters(now: datetime) -> Iterator[tuple[str, str]]:
    number, most = dead_letters.open_count(), conf.settings().DEAD_LETTERS_MAX
    if number > most:
        yield "", f"{number:,} dead letters are open (DEAD_LETTERS_MAX: {most:,})"


def _overdue_schedules(now: datetime) -> Iterator[tuple[str, str]]:
    """Schedules whose fire time and grace have passed, and which have not fired."""
    rows = recurring().filter(status=RecurringStatus.ACTIVE, next_run_at__lte=now)
    columns = ("pk", "name", "next_run_at", "misfire_grace")
    for pk, name, fire_time, grace in rows.order_by("next_run_at").values_list(*columns)[
        : 10 * _TOGETHER
    ]:
        if fire_time + timedelta(seconds=grace) < now:
            yield str(pk), f"Schedule {name} has not fired since {_at(fire_time)}"


def _queues_without_worker(now: datetime) -> Iterator[tuple[str, str]]:
    oldest = now - timedelta(seconds=conf.settings().STALLED_AFTER)
    for depth in queues.depths(now):
        waits = depth.oldest_due_at is not None and depth.oldest_due_at < oldest
        if waits and not depth.workers and depth.paused_at is None:
            yield depth.queue, f"Queue {depth.queue} has due tasks and no worker"


def _skewed_clocks(now: datetime) -> Iterator[tuple[str, str]]:
    most = conf.settings().SKEW_MAX
    alive = Node.objects.using(tables.database()).alive()
    hosts = dict[str, float]()
    for host, skew in alive.filter(skew__isnull=False).order_by("host").values_list("host", "skew"):
        if skew is not None and abs(skew) > max(most, abs(hosts.get(host, 0.0))):
            hosts[host] = skew
    noticed = health.recent_clock_step(alive.filter(clock_step_at__isnull=False), now)
    if noticed is not None:
        step = noticed.clock_step or 0.0
        where = "forward" if step > 0 else "back"
        yield "database", f"The clock of the database was set {where} by {abs(step):,.1f} s"
    for host, skew in hosts.items():
        where = "ahead of" if skew > 0 else "behind"
        yield host, f"The clock of {host} is {abs(skew):.1f} s {where} that of the database"


def _at(instant: datetime) -> str:
    return instant.isoformat(timespec="seconds").replace("+00:00", "Z")


_CHECKS = {
    AlertKind.DEAD_LETTERS: _dead_letters,
    AlertKind.SCHEDULE_OVERDUE: _overdue_schedules,
    AlertKind.QUEUE_WITHOUT_WORKER: _queues_without_worker,
    AlertKind.CLOCK_SKEW: _skewed_clocks,
}
