"""Creates the tasks of due schedules: decides for each fire time, then writes everything in one
transaction.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple, Protocol

from django.db import Error, IntegrityError
from django.db.models import QuerySet

from django_durable_tasks import conf, ports, process_state, registry
from django_durable_tasks.choices import CatchUp, FireOutcome, Overlap, RecurringStatus, Status
from django_durable_tasks.dependencies import edges
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.exceptions import EncryptionError, InvalidSchedule, UnknownTask
from django_durable_tasks.limits import config, overlap
from django_durable_tasks.limits.scopes import Open
from django_durable_tasks.masking import shortened
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.ports import OpenTaskQuota
from django_durable_tasks.registry import Registered
from django_durable_tasks.schedules import ledger, misfires, schedule_cache
from django_durable_tasks.schedules.agenda import Agenda, PlannedRun
from django_durable_tasks.schedules.ledger import LedgerEntry
from django_durable_tasks.schedules.options import CHOICES
from django_durable_tasks.schedules.timetables.builder import never_fires
from django_durable_tasks.schedules.writes import Move, advance, quarantine, wake
from django_durable_tasks.signals import fires_recorded
from django_durable_tasks.states import claims, endings, inserts
from django_durable_tasks.store import tables
from django_durable_tasks.store.dialects import POSTGRESQL, verb
from django_durable_tasks.store.errors import Isolation, is_unique_violation
from django_durable_tasks.store.tables import publish_after_commit
from django_durable_tasks.task_values import NO_ID, NewTask, new_task_id, shard_of
from django_durable_tasks.tasks.enqueue import TaskTemplate
from django_durable_tasks.tasks.enqueue import template as task_template
from django_durable_tasks.tasks.options import CallOptions, call_options, formatted
from django_durable_tasks.texts import counted

logger = logging.getLogger("django_durable_tasks.recurrence")

# Publishes the occurrences of a tick when its transaction commits, without a claim, as the fast
# path does for calls.
#
# A claim costs the database about as much as the insert. The scheduler that fires the schedules
# gives the windows of the queues, within which it may publish.


class Windows(Protocol):
    """How many tasks may be published without a claim."""

    def capacity_at_commit(self, queue: str) -> int:
        """Return how many new tasks of this queue may be published."""

    def record_sent(self, queue: str, number: int) -> None:
        """Record that this number of tasks will be published."""


def queued_if_due(
    tasks: Sequence[NewTask], now: datetime, windows: Windows | None
) -> Sequence[NewTask]:
    """Return the tasks, as QUEUED those that will be published at the commit of this transaction.

    These are due and have no overlap key (which is checked after a claim), run in no batch, and no
    limit applies to them.
    """
    settings = conf.settings()
    if windows is None or not settings.FAST_PATH or ports.eager():
        return tasks
    limits = config.limits_in_force()
    if limits.tenants:
        return tasks  # a claim divides the window of a queue between tenants
    due_at = now + timedelta(seconds=settings.REPUBLISH_AFTER)
    result, sent, capacity = list[NewTask](), list[NewTask](), dict[str, int]()
    for task in tasks:
        if (
            task.overlap_key is None
            and not task.in_batch
            and (task.due_at is not None and task.due_at <= now)
            and (task.expires_at is None or task.expires_at > now)
            and not limits.binds(task.name, task.queue, task.tenant_id)
        ):
            queue = task.queue
            if queue not in capacity:
                capacity[queue] = (
                    windows.capacity_at_commit(queue) if ports.broker_open(queue) else 0
                )
            if capacity[queue] > 0:
                capacity[queue] -= 1
                task = task._replace(status=Status.QUEUED, epoch=1, publish_count=1, due_at=due_at)
                sent.append(task)
        result.append(task)
    sent.sort(key=lambda task: -task.priority)
    for queue, number in Counter([task.queue for task in sent]).items():
        windows.record_sent(queue, number)
    if sent:
        publish_after_commit(claims.messages_for(sent))
    return result


# Builds the Task values and the ledger entry of one fire time of a schedule.
#
# Called by the tick, manual runs and backfills. Writes nothing.


_MAX_TEMPLATES = 1_000
"""If there are this many, all are built again."""


class SharedTemplates:
    """The templates of this process, by what the tasks of several schedules have in common: the
    task function and its options.
    """

    def __init__(self) -> None:
        self._settings: conf.Settings | None = None
        self._templates: dict[tuple[Any, ...], tuple[Registered, TaskTemplate]] = {}

    def __len__(self) -> int:
        return len(self._templates)

    def get(self, row: schedule_cache.ScheduleRow) -> TaskTemplate:
        """Return the template of this schedule's tasks; raises what ``_task_template`` raises."""
        settings = conf.settings()
        if self._settings is not settings or len(self._templates) >= _MAX_TEMPLATES:
            self._settings, self._templates = settings, {}
        key = (row.task, row.tenant_id, row.queue, row.priority, row.options_json)
        known = self._templates.get(key)
        if known is None or known[0] is not registry.find(row.task):
            known = self._templates[key] = (registry.get(row.task), _task_template(row))
        return known[1]


def _task_template(row: schedule_cache.AnySchedule) -> TaskTemplate:
    """Raise UnknownTask or InvalidOption."""
    options = {
        **row.options,
        "tenant": row.tenant_id,
        "queue": row.queue or None,
        "priority": row.priority,
    }
    return task_template(registry.get(row.task), call_options(CallOptions(), options))


@schedule_cache.readable
def template_of(row: schedule_cache.AnySchedule) -> NewTask:
    """Return the values that all tasks of this schedule share, saved or not.

    Raises UnknownTask, InvalidArguments or InvalidOption.
    """
    if isinstance(row, schedule_cache.ScheduleRow):
        shared = process_state.of(SharedTemplates).get(row)
        zone = intern(row.time_zone)  # it is kept in memory for each schedule
    else:
        shared, zone = _task_template(row), row.time_zone
    task, overlap_key = shared.called(tuple(row.args), row.kwargs, NO_ID), overlap_key_of(row)
    expires_in = task.expires_in if row.expires_in is None else row.expires_in
    return task._replace(
        recurring_task_id=row.pk,
        time_zone=zone,
        overlap_key=overlap_key,
        expires_in=expires_in,
        # Overlap keys are checked after a claim, before its messages are published.
        in_batch=task.in_batch and overlap_key is None,
    )


def overlap_key_of(row: schedule_cache.AnySchedule) -> str | None:
    """Return the overlap key of the schedule's runs; None if they may overlap. Raises
    InvalidOption.
    """
    if row.overlap == Overlap.ALLOW:
        return None
    if not row.overlap_key:
        return f"recurring:{row.pk}"
    key = formatted("overlap_key", row.overlap_key, row.args, {**row.kwargs, "task": row.task})
    return f"{row.tenant_id}:{key}"


def occurrence_task(
    shared: NewTask,
    planned: PlannedRun,
    start: datetime,
    verdict: misfires.OverlapDecision,
    key: str | None = None,
) -> NewTask:
    """Return the task of this fire time, from the schedule's ``template``; it starts at
    ``start``, or waits for its overlap key if ``verdict.held`` is set.
    """
    task_id, expires_at = new_task_id(), None
    if shared.expires_in is not None:
        try:
            expires_at = start + timedelta(seconds=shared.expires_in)
        except OverflowError as beyond:
            raise InvalidSchedule(
                f"expires_in={shared.expires_in:g} s after {start.isoformat()} is beyond the"
                " year 9999: declare the schedule again.",
                option="expires_in",
            ) from beyond
    return shared._replace(
        id=task_id,
        shard_key=shard_of(task_id),
        run_at=start,
        due_at=NEVER if verdict.held else start,
        expires_at=expires_at,
        fire_time=planned.nominal,
        idempotency_key=key or idempotency_key(_schedule_of(shared), planned.nominal),
    )


def _schedule_of(shared: NewTask) -> uuid.UUID:
    if shared.recurring_task_id is None:
        raise ValueError(f"The template of {shared.name} has no schedule.")
    return shared.recurring_task_id


def idempotency_key(recurring_task_id: uuid.UUID, fire_time: datetime) -> str:
    """Return the idempotency key of a fire time: the schedule's id and the fire time in UTC."""
    return f"{recurring_task_id}/{fire_time.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"


def ledger_entry(
    shared: NewTask,
    planned: PlannedRun,
    outcome: FireOutcome,
    *,
    term: int | None,
    task: NewTask | None = None,
    **columns: Any,
) -> LedgerEntry:
    """Return the ledger entry of one fire time of the schedule of a template."""
    return LedgerEntry(
        recurring_task_id=_schedule_of(shared),
        tenant_id=shared.tenant_id,
        fire_time=planned.nominal,
        outcome=outcome,
        term=term,
        task_id=task.id if task else None,
        effective_at=task.run_at if task else planned.at,
        **columns,
    )


# Keeps in memory what a tick needs of each schedule and only an edit changes.
#
# A tick reads the few columns that change from fire to fire, and all columns only of schedules
# that this process does not know in their current revision.


_MAX_SCHEDULES = 100_000
"""The number of schedules that a process keeps. Each takes about 1.1 kB."""


class DueState(NamedTuple):
    """The columns of a due schedule that change without an edit, in the order in which a tick
    reads them. ``revision`` identifies the others.
    """

    id: uuid.UUID
    revision: int
    status: str
    watermark_at: datetime
    runs_count: int
    ledger_from: datetime | None
    paused_until: datetime | None

    def processed_until(self) -> datetime:
        """Return the watermark, after which fire times are due.

        Entries before ``ledger_from`` were pruned: their fire times must not fire again, even if
        the watermark was set back behind them.
        """
        if self.ledger_from is None:
            return self.watermark_at
        return max(self.watermark_at, self.ledger_from)


class KnownSchedule(NamedTuple):
    """The values of a schedule that only an edit of it or of its calendars changes."""

    pk: uuid.UUID
    revision: int
    name: str
    task: str
    queue: str
    tenant_id: int
    calendars: tuple[str, ...]
    versions: tuple[schedule_cache.Version, ...]
    agenda: Agenda
    template: NewTask
    policy: misfires.Policy
    overlap: Overlap
    max_runs: int | None
    expires_in: float | None
    jitter: float
    jitter_percent: float


class KnownSchedules:
    """The schedules that this process knows, by id. Beyond the maximum the one that was not used
    for the longest time is removed.
    """

    def __init__(self) -> None:
        # A dict would search its removed entries for the first one at each removal.
        self._by_id: OrderedDict[uuid.UUID, KnownSchedule] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, state: DueState) -> KnownSchedule | None:
        """Return the schedule if it is known in this revision; None if all columns must be read.

        A paused schedule is always read, because the reason of its pause is recorded.
        """
        known = self._by_id.get(state.id)
        if known is None or known.revision != state.revision:
            return None
        if state.status != RecurringStatus.ACTIVE:
            return None
        self._by_id[state.id] = known  # another thread may have removed it
        self._by_id.move_to_end(state.id)
        return known

    def keep(self, schedule: KnownSchedule) -> None:
        """Keep this revision instead of an earlier one."""
        self._by_id[schedule.pk] = schedule
        self._by_id.move_to_end(schedule.pk)
        if len(self._by_id) > _MAX_SCHEDULES:
            self._by_id.popitem(last=False)


class DueSchedules(NamedTuple):
    """The due schedules of a tick: those that are known, and the rows of the others."""

    known: dict[uuid.UUID, KnownSchedule]
    rows: dict[uuid.UUID, schedule_cache.ScheduleRow]
    calendars: schedule_cache.Calendars


def read_due(states: Sequence[DueState]) -> DueSchedules:
    """Read what is not known of these locked schedules; at most three statements."""
    kept = process_state.of(KnownSchedules)
    known = {
        state.id: kept_schedule
        for state in states
        if (kept_schedule := kept.get(state)) is not None
    }
    rows = schedule_cache.read_rows([state.id for state in states if state.id not in known])
    names = {name for schedule in known.values() for name in schedule.calendars}
    calendars = schedule_cache.calendars_of(list(rows.values()), names)
    stale = [
        pk
        for pk, schedule in known.items()
        if schedule.versions
        != tuple(calendars.get((schedule.tenant_id, name)) for name in schedule.calendars)
    ]
    if stale:
        rows |= schedule_cache.read_rows(stale)
        known = {pk: schedule for pk, schedule in known.items() if pk not in rows}
        calendars = schedule_cache.calendars_of(list(rows.values()))
    return DueSchedules(known, rows, calendars)


def known_schedule(
    row: schedule_cache.ScheduleRow, calendars: schedule_cache.Calendars
) -> KnownSchedule:
    """Return the values of a row that was read, and keep them for the next ticks.

    Raises what a corrupted row causes, and UnknownTask or EncryptionError.
    """
    template = template_of(row)
    known = KnownSchedule(
        pk=row.pk,
        revision=row.revision,
        name=row.name,
        task=template.name,
        queue=intern(row.queue),
        tenant_id=row.tenant_id,
        calendars=tuple(row.calendars),
        versions=schedule_cache.named_calendars(row, calendars),
        agenda=schedule_cache.agenda_of(row, calendars),
        template=template,
        policy=policy_of(row),
        overlap=Overlap(row.overlap),
        max_runs=row.max_runs,
        expires_in=row.expires_in,
        jitter=row.jitter,
        jitter_percent=row.jitter_percent,
    )
    process_state.of(KnownSchedules).keep(known)
    return known


_shared_policy = lru_cache(maxsize=1_000)(misfires.Policy)


def policy_of(row: schedule_cache.AnySchedule) -> misfires.Policy:
    """Return the schedule's policy for missed fire times; schedules with the same one share it."""
    columns = {column.name: getattr(row, column.name) for column in fields(misfires.Policy)}
    for name in columns.keys() & CHOICES.keys():
        columns[name] = CHOICES[name](columns[name])
    return _shared_policy(**columns)


# Decides what one tick writes for each schedule, from values read before; executes no statement.


@dataclass
class Tick:
    """The writes of one transaction, collected before the first one is executed."""

    now: datetime
    term: int | None
    alone: bool = False
    opened: dict[Any, list[Open]] = field(default_factory=dict)
    keys: dict[tuple[int, str | None], Any] = field(default_factory=dict)
    recorded: set[tuple[Any, datetime | None]] | None = None
    entries: list[LedgerEntry] = field(default_factory=list)
    new_tasks: list[NewTask] = field(default_factory=list)
    replaced: list[Any] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    schedules: dict[Any, KnownSchedule] = field(default_factory=dict)
    late: list[LedgerEntry] = field(default_factory=list)
    windows: Windows | None = None
    quotas: Mapping[int, OpenTaskQuota] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class FirePlan:
    """What a tick decides about one schedule, from the watermark and run count that it read."""

    schedule: KnownSchedule
    watermark_at: datetime
    runs_count: int
    choice: misfires.Choice


def decide_plan(tick: Tick, plan: FirePlan) -> None:
    """Add the outcome of each fire time of a plan, and the new watermark, to the tick."""
    schedule, choice = plan.schedule, plan.choice
    closed = schedule.agenda.closed(plan.watermark_at, choice.through)
    tick.entries += [
        ledger.entry_of_range(schedule.pk, schedule.tenant_id, fires, tick.term)
        for fires in (*closed, *choice.missed)
    ]
    for missed in choice.missed:
        logger.warning(
            "Recurring task %s missed %s (%s).",
            schedule.name,
            counted(missed.count, "fire"),
            missed.reason,
        )
    remaining = None if schedule.max_runs is None else max(0, schedule.max_runs - plan.runs_count)
    ran = 0
    for number, chosen in enumerate(choice.runs):
        if remaining is not None and ran >= remaining:
            break
        if tick.recorded and (schedule.pk, chosen.planned.nominal) in tick.recorded:
            continue
        following = (
            choice.runs[number + 1].planned if number + 1 < len(choice.runs) else choice.following
        )
        ran += _run(tick, schedule, chosen, following)
    status, reason = None, ""
    if remaining is not None and ran >= remaining:
        status, reason = RecurringStatus.CANCELLED, misfires.MAX_RUNS
    elif choice.following is None:
        status, reason = RecurringStatus.CANCELLED, misfires.ENDED
    tick.moves.append(
        Move(
            schedule.pk,
            schedule.revision,
            choice.following.at if choice.following and not status else None,
            choice.through,
            ran,
            tick.now if ran else None,
            status,
            reason,
        )
    )


def _run(
    tick: Tick, schedule: KnownSchedule, chosen: misfires.ChosenFire, following: PlannedRun | None
) -> int:
    """Add the task of one fire time, or a ledger entry with the reason why it does not run.

    Return the number of tasks added, 0 or 1.
    """
    planned, template = chosen.planned, schedule.template

    def not_run(outcome: FireOutcome, reason: str, blocker: Any = None) -> int:
        tick.entries.append(
            ledger_entry(
                template, planned, outcome, term=tick.term, blocked_by=blocker, reason=reason
            )
        )
        return 0

    expires_in = schedule.expires_in
    if expires_in is not None and planned.at + timedelta(seconds=expires_in) <= tick.now:
        return not_run(FireOutcome.EXPIRED, f"{expires_in:g} s")
    overlap_key = template.overlap_key
    opened = tick.opened.setdefault(overlap_key, []) if overlap_key is not None else []
    all_missed = chosen.caught_up and schedule.policy.catch_up_mode == CatchUp.RUN_ALL_MISSED
    verdict = misfires.decide(schedule.overlap, opened, caught_up=all_missed)
    # The open task that prevents the run, by its overlap key or unique key.
    blocker = verdict.blocked_by
    if verdict.runs:
        blocker = tick.keys.get((schedule.tenant_id, template.unique_key))
        freed = {task.task_id for task in opened if not task.running} & set(verdict.replaces)
        # A task of this tick is cancelled after it was inserted, so it releases its key too late.
        if blocker in freed and blocker not in {task.id for task in tick.new_tasks}:
            blocker = None
    if blocker is not None:
        reason = f"{misfires.named(opened, blocker)} is open"
        return not_run(FireOutcome.SKIPPED_OVERLAP, reason, blocker)
    quota = tick.quotas.get(schedule.tenant_id)
    if quota is not None and not quota.take():
        tick.refused.add(schedule.tenant_id)
        return not_run(FireOutcome.SKIPPED_QUOTA, f"open_tasks, {quota.limit:,}")
    if chosen.caught_up:
        start = tick.now + timedelta(seconds=chosen.delay)
    elif not schedule.jitter and not schedule.jitter_percent:
        start = planned.at
    else:
        start = misfires.effective(
            planned,
            following.at if following else None,
            str(schedule.pk),
            schedule.jitter,
            schedule.jitter_percent,
        )
    task = occurrence_task(template, planned, start, verdict)
    tick.replaced += verdict.replaces
    opened[:] = [run for run in opened if run.task_id not in verdict.replaces or run.running]
    opened.append(Open(task.id, held=verdict.held))
    tick.new_tasks.append(task)
    if task.unique_key is not None:
        tick.keys[schedule.tenant_id, task.unique_key] = task.id
    outcome = FireOutcome.ROLLED if planned.rolled else FireOutcome.DISPATCHED
    remarks = ("caught up", *planned.remarks) if chosen.caught_up else planned.remarks
    reason = "; ".join(remarks)[: ledger.REASON_MAX]
    entry = ledger_entry(template, planned, outcome, term=tick.term, task=task, reason=reason)
    tick.entries.append(entry)
    tick.late += [entry] if chosen.caught_up else []
    return 1


# The schedules that this scheduler cannot fire yet: another release has their task, or another
# process their key. The leader reports them with its heartbeat.


_KEPT = 10.0
"""An entry is dropped this many retry intervals after the last attempt: the schedule was paused,
deleted, or is fired by another leader.
"""


@dataclass(slots=True)
class _Postponed:
    name: str
    error: str
    since: float
    last: float
    number: int


class PostponedSchedules:
    """The postponed schedules of this process; thread-safe."""

    def __init__(self) -> None:
        self._schedules: dict[uuid.UUID, _Postponed] = {}
        self._lock = threading.Lock()

    def add(self, key: uuid.UUID, name: str, error: str) -> None:
        """Record that this schedule could not fire."""
        now = time.monotonic()
        with self._lock:
            schedule = self._schedules.setdefault(key, _Postponed(name, error, now, now, 0))
            schedule.error, schedule.last, schedule.number = error, now, schedule.number + 1

    def remove(self, key: uuid.UUID) -> None:
        """Record that this schedule can fire."""
        if self._schedules:
            with self._lock:
                self._schedules.pop(key, None)

    def failing(self, interval: float) -> list[dict[str, Any]]:
        """Return the schedules as failing parts of a scheduler; ``interval`` (seconds) is the time
        between two attempts.
        """
        now = time.monotonic()
        with self._lock:
            for key, schedule in list(self._schedules.items()):
                if now - schedule.last > _KEPT * interval:
                    del self._schedules[key]
            return [
                {
                    "what": f"recurring task {schedule.name}",
                    "error": schedule.error,
                    "number": schedule.number,
                    "since": round(now - schedule.since, 1),
                }
                for schedule in self._schedules.values()
            ]


# The schedules are locked, the unique key of the ledger decides which fire times are new, and the
# watermark moves in the same transaction. A crash at any statement therefore leaves nothing or
# everything, and two leaders create the task of a fire time once. A schedule that fails is
# quarantined and does not stop the others.


def head() -> datetime | None:
    """Return when the next schedule is due; one index lookup."""
    rows = schedule_cache.recurring().filter(next_run_at__isnull=False)
    first: datetime | None = (
        rows.order_by("next_run_at").values_list("next_run_at", flat=True).first()
    )
    return first


class _AlreadyRecorded(Exception):
    """The ledger has an entry of a fire time that this tick considered new."""


_isolation = Isolation[uuid.UUID]("recurring task")


class DueSelection(NamedTuple):
    """Which due schedules a batch takes: those to process after ``after`` and up to ``now``, the
    oldest first, at most ``limit``; or only those with the ids ``keys``.
    """

    now: datetime
    limit: int
    after: datetime | None = None
    keys: Sequence[uuid.UUID] | None = None

    def rows(self) -> QuerySet[RecurringTask]:
        """Return the selected schedules, without the postponed ones and without ``limit``."""
        due: QuerySet[RecurringTask] = schedule_cache.recurring().due(self.now)
        if self.after is not None:
            due = due.filter(next_run_at__gt=self.after)
        if self.keys is not None:
            due = due.filter(pk__in=self.keys)
        return due.exclude(pk__in=_isolation.postponed())


def fire_due(
    now: datetime,
    limit: int,
    term: int | None = None,
    *,
    after: datetime | None = None,
    windows: Windows | None = None,
    keys: Sequence[uuid.UUID] | None = None,
) -> int:
    """Record all fire times up to ``now`` of at most ``limit`` due schedules; return how many
    tasks were created.

    With ``after``, schedules that became due before it or at it are left to other batches. With
    ``windows``, tasks that are due and within them are published at the commit. With ``keys``, only
    the schedules with these ids. A batch that cannot be written is repeated schedule by schedule;
    one that fails alone is quarantined. An outage of the database is raised and changes nothing.
    """
    selection, revisions = DueSelection(now, limit, after, keys), dict[uuid.UUID, int]()

    def due() -> list[uuid.UUID]:
        revisions.update(selection.rows().values_list("pk", "revision")[:limit])
        return list(revisions)

    created = _isolation.batch(
        lambda: _fire(selection, term, windows),
        due,
        lambda pk: _fire(DueSelection(now, 1, keys=[pk]), term),
        on_failure=lambda pk, error: quarantine(pk, revisions[pk], error),
    )
    return sum(created)


def _fire(selection: DueSelection, term: int | None, windows: Windows | None = None) -> int:
    """Fire assuming that the ledger has no entry of these fire times; if it has one, repeat and
    read its entries first.
    """
    now, alone = selection.now, selection.keys is not None
    tick = Tick(now, term, alone, windows=windows)
    try:
        created = _tick(tick, selection)
    except _AlreadyRecorded:
        tick = Tick(now, term, alone, recorded=set())
        created = _tick(tick, selection)
    if ports.quotas is not None:
        for tenant_id in sorted(tick.refused):
            most = tick.quotas[tenant_id].limit
            detail = f"open_tasks: the tenant may have {most:,} open tasks."
            ports.quotas.refused(tenant_id, "open_tasks", detail)
    return created


def _tick(tick: Tick, selection: DueSelection) -> int:
    with tables.atomic():
        states = _locked(selection)
        if not states:
            return 0
        plans = _plans(tick, states)
        overlap_keys = {plan.schedule.template.overlap_key for plan in plans if plan.choice.runs}
        tick.opened = overlap.open_runs({key for key in overlap_keys if key is not None})
        tick.keys = _key_owners(plans)
        if tick.recorded is not None:
            tick.recorded |= ledger.recorded(
                {
                    plan.schedule.pk: [run.planned.nominal for run in plan.choice.runs]
                    for plan in plans
                }
            )
        if ports.quotas is not None:
            demand = Counter[int]()
            for plan in plans:
                demand[plan.schedule.tenant_id] += len(plan.choice.runs)
            tick.quotas = ports.quotas.admit_open_tasks(+demand, tick.now)
        for plan in plans:
            decide_plan(tick, plan)
        return _write(tick)


def _locked(selection: DueSelection) -> list[DueState]:
    """Lock selected rows that no other transaction has locked; return their states in primary-key
    order.
    """
    if selection.keys is None:
        return _locked_due(selection)
    return _locked_keys(selection.keys, selection.now)


@verb
def _locked_due(selection: DueSelection) -> list[DueState]:
    keys = selection.rows().values_list("pk", flat=True)[: selection.limit]
    return _locked_keys(list(keys), selection.now)


@_locked_due.on(POSTGRESQL)
def _locked_due_in_one_statement(selection: DueSelection) -> list[DueState]:
    """Lock by the statement that is limited, so that locked rows do not count as found."""
    due = tables.locked_for_change(selection.rows(), skip_locked=True)
    return sorted(map(DueState._make, due.values_list(*DueState._fields)[: selection.limit]))


def _locked_keys(keys: Sequence[uuid.UUID], now: datetime) -> list[DueState]:
    if not keys:
        return []
    # By the primary key alone, as all operations lock schedules: by another index MariaDB would
    # deadlock with them.
    rows = schedule_cache.recurring().filter(pk__in=keys).order_by("pk")
    queryset = tables.locked_for_change(rows, skip_locked=True)
    return [
        DueState._make(columns)
        for next_run_at, *columns in queryset.values_list("next_run_at", *DueState._fields)
        if next_run_at is not None and next_run_at <= now
    ]


_NEWER = "If the task is new, restart this scheduler: its code is older than the schedule."


def _plans(tick: Tick, states: Sequence[DueState]) -> list[FirePlan]:
    due, plans, waiting = read_due(states), list[FirePlan](), list[Move]()
    postponed = process_state.of(PostponedSchedules)
    for state in states:
        is_paused = state.status == RecurringStatus.PAUSED
        pause_ends = is_paused and state.paused_until is not None and state.paused_until <= tick.now
        if state.status != RecurringStatus.ACTIVE and not pause_ends:
            until = state.paused_until if is_paused else None
            waiting.append(Move(state.id, state.revision, until, state.watermark_at))
            continue
        known = due.known.get(state.id)
        if known is not None:
            plans.append(_plan(tick, state, known, state.processed_until()))
            continue
        row = due.rows[state.id]
        try:
            known, watermark = known_schedule(row, due.calendars), state.processed_until()
            if is_paused:
                # The fire times during the pause are recorded, later ones fire as usual.
                until = max(row.paused_until or tick.now, watermark)
                passed = ledger.paused_range(row, known.agenda, watermark, until, tick.term)
                tick.entries += [passed] if passed else []
                wake(row.pk, row.revision)
                watermark = until
            plan = _plan(tick, state, known, watermark)
            if plan.choice.following is None and not plan.choice.runs:
                # A timetable that has ended is valid; one that can never fire is not.
                why = never_fires(
                    row.timetable, zone=row.time_zone, anchor=row.start_time, seed=row.name
                )
                if why or not row.timetable:
                    raise InvalidSchedule(why or "timetable=[] has no part: it never fires.")
            plans.append(plan)
            postponed.remove(row.pk)
        except (UnknownTask, EncryptionError) as error:
            # Another release may have this task, or another process the key. The watermark stays,
            # so the fire times are caught up later.
            text = f"{error} {_NEWER}" if isinstance(error, UnknownTask) else str(error)
            logger.warning("Recurring task %s is postponed: %s", row.name, text)
            postponed.add(row.pk, row.name, text)
            later = tick.now + timedelta(seconds=conf.unknown_task_delay())
            waiting.append(Move(state.id, state.revision, later, state.watermark_at))
        except Error:
            raise  # the transaction is aborted, and the schedule is not the cause
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the schedule stores and shows it
            quarantine(row.pk, row.revision, error)
    if waiting:
        advance(waiting)
    return plans


def _plan(tick: Tick, state: DueState, known: KnownSchedule, watermark: datetime) -> FirePlan:
    choice = misfires.choose(known.agenda, watermark, tick.now, known.policy)
    tick.schedules[known.pk] = known
    return FirePlan(known, watermark, state.runs_count, choice)


def _key_owners(plans: Sequence[FirePlan]) -> dict[tuple[int, str | None], Any]:
    """Return the open tasks that own the unique keys of these runs; no statement without keys."""
    keys = {plan.schedule.template.unique_key for plan in plans if plan.choice.runs} - {None}
    if not keys:
        return {}
    owners = tables.tasks().filter(open_unique_key__in=keys)
    rows = owners.values_list("tenant_id", "open_unique_key", "pk")
    return {(tenant, key): task_id for tenant, key, task_id in rows}


# Writes -------------------------------------------------------------------------------------------


def _write(tick: Tick) -> int:
    """Write the ledger first: only tasks whose entry was inserted are created."""
    new = ledger.write(tick.entries)
    created = [task for task in tick.new_tasks if task.id in new]
    if len(created) < len(tick.new_tasks):
        if tick.recorded is None:
            raise _AlreadyRecorded
        # MariaDB and SQLite skip a row of a bulk INSERT for any constraint, without an error. A
        # fire time must have either a new entry or an older one.
        unwritten = {task.occurrence for task in tick.new_tasks if task.id not in new}
        times = [fire_time for _, fire_time in unwritten]
        if unwritten - ledger.recorded({schedule: times for schedule, _ in unwritten}):
            raise IntegrityError(
                "The database skipped a ledger insert although no entry of this fire time exists."
            )
    ids = {task.id for task in created}
    _replace([task_id for task_id in tick.replaced if task_id not in ids])
    if created and tick.alone:
        alone, created = created, list[NewTask]()
        for task in alone:
            try:
                with tables.atomic():
                    inserts.create_many([task])
                created.append(task)
            except IntegrityError as refused:
                if not is_unique_violation(refused):
                    raise
                # Another task acquired one of its keys first.
                ledger.refuse(*task.occurrence, shortened(str(refused), ledger.REASON_MAX))
    elif created:
        inserts.create_many(queued_if_due(created, tick.now, tick.windows))
    _replace([task_id for task_id in tick.replaced if task_id in ids])
    moves = tick.moves
    if len(created) < len(tick.new_tasks):
        # Only created tasks are counted.
        moves, ran = [], Counter(task.recurring_task_id for task in created)
        for move in tick.moves:
            if move.ran > ran[move.pk] and move.reason == misfires.MAX_RUNS:
                move = replace(move, status=None, reason="", next_run_at=tick.now)
            ran_at = tick.now if ran[move.pk] else None
            moves.append(replace(move, ran=ran[move.pk], last_run_at=ran_at))
    advance(moves)
    missed = [entry for entry in tick.entries if entry.outcome == FireOutcome.MISSED]
    if missed or tick.late:
        fires_recorded.send(RecurringTask, missed=missed, late=tick.late, schedules=tick.schedules)
    return len(created)


def _replace(stale: Sequence[Any]) -> None:
    if stale:
        queryset = tables.tasks().filter(pk__in=stale)
        endings.cancel(queryset, "REPLACED")
        endings.request_cancel(queryset, "REPLACED")
        edges.request_cancel_runs(workflow_runs().filter(pk__in=stale), "REPLACED")
