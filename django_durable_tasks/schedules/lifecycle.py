"""Creates, changes, pauses, snoozes, resumes and ends schedules, and overrides single fire
times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any

from django.db import IntegrityError
from django.db.models import Q
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.audit import (
    ENCRYPTED,
    acting,
    comment,
    current_actor,
    masked_arguments,
    recorded,
)
from django_durable_tasks.choices import Action, RecurringStatus
from django_durable_tasks.exceptions import (
    EncryptionError,
    IdempotencyConflict,
    InvalidOption,
    InvalidSchedule,
    TransitionRefused,
)
from django_durable_tasks.models import DEFAULT_TENANT_ID, RecurringTask
from django_durable_tasks.models.fields import undecrypted
from django_durable_tasks.operations import Argument, Reason, Target, as_text, operation
from django_durable_tasks.option_values import KEY_MAX, checked_key, checked_name, instant, seconds
from django_durable_tasks.schedules import ledger, trigger, writes
from django_durable_tasks.schedules.agenda import Agenda, BoundedTimetable, Override, PlannedRun
from django_durable_tasks.schedules.business_days import Roll, longest_closure
from django_durable_tasks.schedules.options import CODE, KINDS, SETTINGS, columns
from django_durable_tasks.schedules.schedule_cache import (
    Calendars,
    agenda_of,
    business_days_of,
    calendars_of,
    check,
    fire_times_of,
    overrides_of,
    recurring,
    stored_overrides,
)
from django_durable_tasks.schedules.timetables.builder import alternatives
from django_durable_tasks.schedules.timetables.types import TICK, Fire, Timetable, walk
from django_durable_tasks.schedules.timetables.zones import tzdata_version
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.errors import retry_on_deadlock

# Resolves an instant in whole seconds, as users enter it, to the exact fire time within that
# second.
#
# The admin and the command line show whole seconds, but a schedule may fire between them.


_TOO_MANY = 2
"""The search stops at two fire times, because the instant is then ambiguous."""


def end_of(at: datetime) -> datetime:
    """Return the last instant of the second of ``at``, or ``at`` itself if it has a fraction."""
    return at if at.microsecond else at + timedelta(seconds=1) - TICK


def meant_fire_time(row: RecurringTask, at: datetime) -> datetime:
    """Return the only fire time within the second of ``at`` (UTC), or ``at`` itself.

    Considers the timetable between the start and end of the schedule, its overrides and the ledger.
    Returns ``at`` unchanged if the second contains no fire time or several, or if ``at`` has a
    fraction. Raises InvalidSchedule if the row is corrupted.
    """
    last = end_of(at)
    if last == at:
        return at
    end = last if row.end_time is None else min(last, row.end_time)
    fires = walk(fire_times_of(row), max(at, row.start_time) - TICK, end)
    meant = {fire.nominal for fire in islice(fires, _TOO_MANY)}
    within = Q(fire_time__range=(at, last))
    # Two conditions, because the unique key serves one and the partial index the other.
    recorded_within = Q(unique_fire_time__range=(at, last)) | (
        Q(unique_fire_time__isnull=True, last_fire_time__isnull=True) & within
    )
    meant.update(
        override.fire_time for override in overrides_of(row) if at <= override.fire_time <= last
    )
    recorded = ledger.ledger().filter(recorded_within, recurring_task=row.pk)
    meant.update(recorded.values_list("fire_time", flat=True)[:_TOO_MANY])
    return meant.pop() if len(meant) == 1 else at


def utc(instant: datetime) -> str:
    """Return an instant as text, in UTC."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def not_a_fire_time(row: RecurringTask, agenda: Agenda, at: datetime) -> str:
    """Return why a schedule has no fire time at this instant, with the neighbouring ones."""
    before, after = agenda.previous(at), agenda.next(at)
    if at < row.start_time:
        first = f" The first fire time is {utc(after.nominal)}." if after else ""
        return (
            f"{utc(at)} is before the start of {row.name}, {utc(row.start_time)}: nothing fires"
            f" before it.{first}"
        )
    if row.end_time is not None and at > row.end_time:
        last = f" The last fire time is {utc(before.nominal)}." if before else ""
        return (
            f"{utc(at)} is after the end of {row.name}, {utc(row.end_time)}: nothing fires after"
            f" it.{last}"
        )
    return f"{utc(at)} is no fire time of {row.name}: {neighbours(before, after, 'it')}."


def neighbours(before: PlannedRun | Fire | None, after: PlannedRun | Fire | None, what: str) -> str:
    """Return the fire times before and after ``what`` as a part of a sentence."""
    words = (("before", before), ("after", after))
    comes = [f"{word} {what} comes {utc(fire.nominal)}" for word, fire in words if fire]
    return " and ".join(comes) or "it has none"


# A change never fires a time in the past. Called by the managers of RecurringTask, ``sync``, the
# admin and the command line.


SNOOZED = "SNOOZED"
"""The status reason of a pause made by ``snooze``."""
_WHEN = frozenset(
    {
        "timetable",
        "interval_seconds",
        "time_zone",
        "dst_gap",
        "dst_overlap",
        "calendars",
        "roll",
        "start_time",
        "end_time",
        "status",
    }
)
"""The columns that determine fire times. A change of one of them sets the watermark to now."""


def locked(row: RecurringTask) -> RecurringTask:
    """Read the row again and lock it with SELECT FOR UPDATE; call it inside ``atomic()``."""
    schedule: RecurringTask = recurring().select_for_update().get(pk=row.pk)
    return schedule


@retry_on_deadlock
def upsert(
    *,
    name: str,
    task: Any,
    tenant: Any = None,
    source: str | None = None,
    paused: bool = False,
    revision: int | None = None,
    replaces_ended: bool = False,
    by: str = "",
    reason: str = "",
    **options: Any,
) -> RecurringTask:
    """Create or change the schedule of this name; keywords that are absent leave their column
    unchanged.

    With ``replaces_ended``, a schedule of this name that has ended loses its name to a new one.
    ``paused`` creates the schedule as PAUSED, and its timetable may be one that never fires. Raises
    InvalidSchedule, InvalidOption, InvalidArguments or UnknownTask. With ``revision``, raises
    TransitionRefused if the schedule has another revision. After an error nothing is written.
    """
    registry.load_for(task)
    tenant_id = DEFAULT_TENANT_ID if tenant is None else getattr(tenant, "pk", tenant)
    values = checked_columns(name, task, options, may_never_fire=paused)
    values |= {} if source is None else {"source": source}
    for _try in range(2):
        try:
            with acting(by=by, reason=reason), recorded("schedule.save"):
                if replaces_ended:
                    release_name(name, tenant_id)
                row = recurring().filter(tenant_id=tenant_id, name=name).select_for_update().first()
                if revision is not None and (row is None or row.revision != revision):
                    raise TransitionRefused(
                        f"Recurring task {name!r} was changed meanwhile: read it again."
                    )
                if row is None:
                    return create(name, tenant_id, values, paused)
                return change(row, values, is_edit=revision is not None)
        except IntegrityError as taken:
            lost = taken
    raise lost


def checked_columns(
    name: str, task: Any, options: Mapping[str, Any], *, may_never_fire: bool
) -> dict[str, Any]:
    """Return the columns that these arguments of ``upsert`` set, and raise its errors."""
    checked_key("name", name)
    values = columns(name, options, may_never_fire=may_never_fire)
    values |= {"task": checked_name("task", getattr(task, "name", task))}
    return with_json_arguments(values)


def with_json_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns with the arguments in the JSON form of their types; raises
    UnserializableArguments.
    """
    registered = registry.find(values["task"])
    if registered is None or registered.types is None or not {"args", "kwargs"} & values.keys():
        return dict(values)
    name = registered.options.name
    args, kwargs = registered.types.to_json(name, values.get("args", ()), values.get("kwargs", {}))
    converted = {"args": list(args), "kwargs": kwargs}
    return {**values, **{key: value for key, value in converted.items() if key in values}}


def drafted(name: str, tenant_id: int, values: Mapping[str, Any], now: datetime) -> RecurringTask:
    """Return a new schedule with these validated columns, which is not saved. Raises
    InvalidSchedule if it has no timetable.
    """
    row = RecurringTask(
        tenant_id=tenant_id,
        name=name,
        created_at=now,
        updated_at=now,
        **{"start_time": now, **values},
    )
    if "time_zone" not in values:
        row.time_zone = ports.schedule_zone()
    if not row.timetable:
        raise InvalidSchedule(f"Recurring task {name!r} needs one of {', '.join(KINDS)}.")
    return row


def create(
    name: str, tenant_id: int, values: Mapping[str, Any], paused: bool = False
) -> RecurringTask:
    """Insert a schedule with these validated columns.

    Raises IntegrityError if a concurrent transaction inserted the name or key first.
    """
    now = database_now()
    row = drafted(name, tenant_id, values, now)
    if row.idempotency_key is not None:
        same: RecurringTask | None = (
            recurring().filter(tenant_id=tenant_id, idempotency_key=row.idempotency_key).first()
        )
        if same is not None and (same.task, same.timetable) != (row.task, row.timetable):
            raise IdempotencyConflict(
                f"idempotency_key={row.idempotency_key!r} belongs to recurring task {same.name!r}."
            )
        if same is not None:
            return same
    if paused:
        row.status, row.paused_at, row.status_reason = RecurringStatus.PAUSED, now, "CREATED_PAUSED"
    row.target_type = trigger.template_of(row).target_type
    _plan(row, now)
    with recorded("schedule.create"):
        writes.insert(row)
    return row


def release_name(name: str, tenant_id: int) -> None:
    """Rename a schedule of this name that has ended, so that a new one can have the name.

    One that code or settings declare keeps its name, by which a sync finds it.
    """
    ended = recurring().filter(tenant_id=tenant_id, name=name, status=RecurringStatus.CANCELLED)
    row = ended.exclude(source__in=(CODE, SETTINGS)).select_for_update().first()
    if row is None:
        return
    suffix = f" (ended, {row.pk})"
    row.name = f"{name[: KEY_MAX - len(suffix)]}{suffix}"
    row.updated_at = database_now()
    with recorded("schedule.change"):
        writes.rewrite(row)


def change(
    row: RecurringTask, values: Mapping[str, Any], *, is_edit: bool = False
) -> RecurringTask:
    """Write these validated columns to a locked row.

    If a column that determines fire times changes, only times after now fire. In an edit, given
    arguments count as changed, and have an audit entry, also if they are equal: otherwise an editor
    who may not read a secret could guess it by what changes.
    """
    changed = {column for column, value in values.items() if undecrypted(row, column) != value}
    changed |= ({"args", "kwargs"} & values.keys()) if is_edit else set()
    for column in changed:
        setattr(row, column, values[column])
    if not changed:
        return row
    row.updated_at = database_now()
    try:
        row.target_type = trigger.template_of(row).target_type
    except EncryptionError:
        if {"task", "args", "kwargs"} & changed:
            raise
        # A schedule whose arguments cannot be decrypted can still be paused and changed.
    if _WHEN & changed:
        _plan(row, row.updated_at)
    with recorded("schedule.change") as entry:
        writes.rewrite(row)
        if row.encryption_key is not None and {"args", "kwargs"} & changed:
            entry.detail(args=ENCRYPTED, kwargs=ENCRYPTED)
        elif {"args", "kwargs"} & changed:
            entry.detail(**masked_arguments(row.task, row.args, row.kwargs))
    return row


def _plan(row: RecurringTask, now: datetime) -> None:
    """Set the watermark to ``now`` and, if the row is active, the next fire time after it."""
    row.watermark_at, row.tzdata_version = now, tzdata_version()
    if row.status != RecurringStatus.ACTIVE:
        return
    following = agenda_of(row).next(now)
    if following is None:
        raise InvalidSchedule(
            f"Recurring task {row.name!r} would never fire after {now.isoformat()}: check"
            " timetable, start_time and end_time, or pause it."
        )
    row.next_run_at = following.at


# Operations ---------------------------------------------------------------------------------------


INSTANT_HELP = _("A local time in the time zone of the schedule, or a time with its UTC offset.")
NOT_ENDED = frozenset({RecurringStatus.ACTIVE, RecurringStatus.PAUSED})


def _paused(_value: None, until: datetime | None = None, **_arguments: Any) -> str:
    if until:
        return gettext("Paused until %s. It resumes automatically.") % as_text(until)
    return gettext("Paused until it is resumed.")


@operation(
    Target.SCHEDULE,
    title=_("Pause schedule"),
    help=_(
        "It does not fire until it is resumed. Missed fire times are recorded as PAUSED. Open tasks"
        " continue."
    ),
    permission="pause_recurringtask",
    reason=Reason.REQUIRED_IN_FORMS,
    statuses=NOT_ENDED,
    applies_to=Q(status=RecurringStatus.ACTIVE),
    counted="paused",
    done=_paused,
    summary=ngettext_lazy("Paused %(number)d schedule.", "Paused %(number)d schedules.", "number"),
)
def pause(
    row: RecurringTask,
    *,
    until: Annotated[
        datetime | None,
        Argument(
            _("Until"),
            _("When it resumes automatically. If empty, it stays paused until it is resumed."),
        ),
    ] = None,
) -> None:
    """Stop firing until ``resume`` or until ``until`` (aware). Raises TransitionRefused if the
    schedule has ended.
    """
    wake = None if until is None else instant("until", until)
    with recorded("schedule.pause"):
        schedule = locked(row)
        refuse_ended(schedule, "paused")
        _pause(row, schedule, current_actor().reason, wake)


@operation(
    Target.SCHEDULE,
    title=_("Snooze schedule"),
    help=_("Fire times up to an instant are recorded as PAUSED. Then it resumes automatically."),
    permission="pause_recurringtask",
    statuses=frozenset({RecurringStatus.ACTIVE}),
    counted="snoozed",
    done=_("Snoozed until %(until)s. It resumes automatically."),
)
def snooze(
    row: RecurringTask,
    until: Annotated[
        datetime, Argument(_("Until"), INSTANT_HELP, positional=True, metavar="UNTIL")
    ],
) -> None:
    """Pause until ``until`` (aware). Fire times up to it do not run; then the schedule continues.

    An instant in whole seconds includes the only fire time within that second. A later call
    replaces an earlier one. Raises TransitionRefused if the schedule has ended or is paused for
    another reason.
    """
    wake = instant("until", until).astimezone(UTC)
    with recorded("schedule.snooze"):
        schedule = locked(row)
        refuse_ended(schedule, "snoozed")
        own_pause = schedule.status_reason.startswith(SNOOZED)
        if schedule.status == RecurringStatus.PAUSED and not own_pause:
            end = schedule.paused_until
            by = f" by {schedule.status_by}" if schedule.status_by else ""
            pause_end = f" until {end.isoformat()}" if end else ""
            why = f" ({schedule.status_reason})" if schedule.status_reason else ""
            raise TransitionRefused(
                f"Recurring task {row.name!r} is paused{by}{pause_end}{why}: resume it first."
            )
        reason = comment(SNOOZED, reason=current_actor().reason)
        _pause(row, schedule, reason, meant_fire_time(schedule, wake))


def _pause(row: RecurringTask, schedule: RecurringTask, reason: str, wake: datetime | None) -> None:
    now = database_now()
    if wake is not None and wake <= now:
        raise InvalidOption(
            f"until={wake.isoformat()} is not after now, {now.isoformat()}.", option="until"
        )
    schedule.paused_at = schedule.paused_at if schedule.status == RecurringStatus.PAUSED else now
    schedule.status, schedule.status_by = RecurringStatus.PAUSED, current_actor().by[:200]
    schedule.status_reason = reason[:200]
    schedule.paused_until = schedule.next_run_at = wake
    keep(row, schedule, now)


def _resumed(_value: bool, run_missed: bool = False, **_arguments: Any) -> str:
    if run_missed:
        return gettext("Resumed. The missed runs of the pause are caught up.")
    return gettext("Resumed. Missed runs of the pause are not caught up.")


@operation(
    Target.SCHEDULE,
    title=_("Resume schedule"),
    help=_(
        "It fires again from now on. Missed runs of the pause are not caught up unless you ask for"
        " it."
    ),
    permission="pause_recurringtask",
    statuses=frozenset({RecurringStatus.PAUSED}),
    applies_to=Q(status=RecurringStatus.PAUSED),
    counted="resumed",
    done=_resumed,
    summary=ngettext_lazy(
        "Resumed %(number)d schedule.", "Resumed %(number)d schedules.", "number"
    ),
)
def resume(
    row: RecurringTask,
    *,
    run_missed: Annotated[
        bool,
        Argument(
            _("Catch up"), _("Run fire times missed during the pause, by the catch-up options.")
        ),
    ] = False,
    pace: Annotated[
        float | None,
        Argument(
            _("Pace"),
            _("Seconds between two runs that are caught up. Default: the schedule's."),
            minimum=0,
            metavar="SECONDS",
        ),
    ] = None,
) -> bool:
    """Fire again from now on; return whether it was paused.

    Fire times during the pause are recorded as PAUSED, or caught up if ``run_missed`` is set.
    ``pace`` sets the schedule's catch-up pace.
    """
    actor = current_actor()
    with recorded("schedule.resume"):
        now, schedule = database_now(), locked(row)
        refuse_ended(schedule, "resumed")
        if schedule.status == RecurringStatus.ACTIVE:
            return False
        check(schedule)
        passed = (
            None
            if run_missed
            else ledger.paused_range(schedule, agenda_of(schedule), schedule.watermark_at, now)
        )
        schedule.status, schedule.status_by = RecurringStatus.ACTIVE, actor.by[:200]
        schedule.error = ""
        if pace is not None:
            schedule.catchup_pace = seconds("pace", pace)
        if run_missed:
            following = agenda_of(schedule).next(schedule.watermark_at)
            # If no fire time is left, the next tick ends the schedule.
            schedule.next_run_at = following.at if following else now
        else:
            ledger.write([passed] if passed else [])
            _plan(schedule, now)
        schedule.status_reason = actor.reason[:200]
        schedule.paused_at = None
        schedule.paused_until = None
        keep(row, schedule, now)
    return True


@operation(
    Target.SCHEDULE,
    title=_("End schedule permanently"),
    help=_(
        "It never fires again and cannot be resumed. Open tasks continue, and the ledger is kept."
    ),
    permission="pause_recurringtask",
    reason=Reason.REQUIRED_IN_FORMS,
    statuses=NOT_ENDED,
    applies_to=~Q(status=RecurringStatus.CANCELLED),
    counted="cancelled",
    done=_("Ended permanently."),
    summary=ngettext_lazy("Ended %(number)d schedule.", "Ended %(number)d schedules.", "number"),
)
def cancel(row: RecurringTask) -> None:
    """End the schedule permanently. Its open tasks still run. Does nothing if it has ended."""
    actor = current_actor()
    with recorded("schedule.cancel"):
        now, schedule = database_now(), locked(row)
        if schedule.status == RecurringStatus.CANCELLED:
            return
        schedule.status, schedule.status_by = RecurringStatus.CANCELLED, actor.by[:200]
        schedule.status_reason = actor.reason[:200]
        schedule.next_run_at = schedule.paused_until = None
        keep(row, schedule, now)


def refuse_ended(row: RecurringTask, action: str) -> None:
    """Raise TransitionRefused if the schedule has ended; ``action`` completes the message."""
    if row.status == RecurringStatus.CANCELLED:
        raise TransitionRefused(
            f"Recurring task {row.name!r} has ended ({row.status_reason}): it cannot be {action}."
        )


def keep(row: RecurringTask, schedule: RecurringTask, now: datetime) -> None:
    """Write the locked row and copy its columns to the caller's object."""
    schedule.updated_at = now
    writes.rewrite(schedule)
    for spec in RecurringTask._meta.concrete_fields:
        setattr(row, spec.attname, undecrypted(schedule, spec.attname))


# Skips, moves and adds single future fire times of a schedule, and removes such overrides.
#
# Called by the managers of RecurringTask.


_MOST = 1_000
"""The overrides of a schedule. They are read and written together, as a part of its row."""


FireTime = Annotated[
    datetime, Argument(_("Fire time"), INSTANT_HELP, positional=True, metavar="AT")
]


def _move_to_matches(arguments: Mapping[str, Any]) -> Mapping[str, str]:
    if (arguments.get("action") == Action.MOVE) != bool(arguments.get("move_to")):
        return {"move_to": gettext("Required with MOVE, and not allowed otherwise.")}
    return {}


@operation(
    Target.SCHEDULE,
    title=_("Override a fire time"),
    help=_("Skip one fire time, move it, or add one that the timetable does not have."),
    permission="pause_recurringtask",
    reason=Reason.REQUIRED_IN_FORMS,
    statuses=NOT_ENDED,
    check=_move_to_matches,
    counted="overridden",
    done=_("Override saved: %(action)s for the fire time %(fire_time)s."),
)
def override(
    row: RecurringTask,
    fire_time: FireTime,
    action: Annotated[
        str, Argument(_("Action"), choices=tuple((action.value, action.value) for action in Action))
    ],
    *,
    move_to: Annotated[
        datetime | None, Argument(_("Move to"), _("The new time of a fire time that is moved."))
    ] = None,
) -> Override:
    """SKIP a fire time, MOVE it to ``move_to``, or ADD one; replaces an earlier override of the
    same fire time.

    Instants are aware. For SKIP and MOVE, a ``fire_time`` in whole seconds refers to the only fire
    time within that second. Raises TransitionRefused if the fire time has passed or the schedule
    has ended. Raises InvalidSchedule if SKIP or MOVE refers to no fire time, or ADD to an existing
    one.
    """
    when, target = instant("fire_time", fire_time).astimezone(UTC), None
    if action not in set(Action):
        raise InvalidSchedule.of("action", action, "give SKIP, MOVE or ADD.")
    if (action == Action.MOVE) != (move_to is not None):
        raise InvalidSchedule("move_to goes with MOVE, and MOVE with move_to.")
    if move_to is not None:
        target = instant("move_to", move_to).astimezone(UTC)
    actor = current_actor()
    with recorded("schedule.override") as entry:
        entry.subject("schedule", row.pk, row.tenant_id)
        now, schedule = database_now(), locked(row)
        refuse_ended(schedule, "overridden")
        when = when if action == Action.ADD else meant_fire_time(schedule, when)
        kept = [existing for existing in overrides_of(schedule) if existing.fire_time != when]
        schedule.overrides = stored_overrides(kept)
        _check(schedule, when, target, Action(action), now)
        if len(kept) >= _MOST:
            # Those that are older than the ledger have no effect any more.
            kept_from = conf.kept_from("LEDGER", now)
            kept = [
                existing
                for existing in kept
                if max(existing.fire_time, existing.move_to or existing.fire_time) >= kept_from
            ]
            if len(kept) >= _MOST:
                raise TransitionRefused(
                    f"Recurring task {row.name!r} has {_MOST:,} overrides, the most that are"
                    " allowed: remove one first."
                )
        created = Override(when, action, target, actor.reason[:200], actor.by[:200])
        schedule.overrides = stored_overrides([*kept, created])
        if action == Action.ADD:
            _check_runs_of_day(schedule, when, "fire_time")
        elif target is not None and target.date() != when.date():
            _check_runs_of_day(schedule, target, "move_to")
        entry.detail(override=[action, when, target])
        _replan(row, schedule, now)
    return created


@operation(
    Target.SCHEDULE,
    name="remove_override",
    title=_("Remove an override"),
    help=_("The fire time follows the schedule again."),
    permission="pause_recurringtask",
    statuses=NOT_ENDED,
    counted="withdrawn",
    done=_("Override removed: %(fire_time)s follows the schedule again."),
    unchanged=_("There was no override of %(fire_time)s."),
)
def withdraw_override(row: RecurringTask, fire_time: FireTime) -> bool:
    """Delete the override of a fire time; return False if there is none.

    Raises TransitionRefused if the fire time has passed.
    """
    when = instant("fire_time", fire_time).astimezone(UTC)
    with recorded("schedule.remove_override") as entry:
        entry.subject("schedule", row.pk, row.tenant_id)
        now, schedule = database_now(), locked(row)
        refuse_ended(schedule, "overridden")
        when = meant_fire_time(schedule, when)
        overrides = overrides_of(schedule)
        existing = next((override for override in overrides if override.fire_time == when), None)
        if existing is None:
            return False
        _refuse_past(schedule, when, now, "fire_time")
        schedule.overrides = stored_overrides(
            override for override in overrides if override is not existing
        )
        entry.detail(removed_override=[existing.action, when, existing.move_to])
        _refuse_recorded(schedule, when)
        if existing.action != Action.ADD:
            _check_runs_of_day(schedule, when, "fire_time")
        _replan(row, schedule, now)
    return True


def _check(
    row: RecurringTask, when: datetime, target: datetime | None, action: Action, now: datetime
) -> None:
    """Raise an error if a fire time has passed, does not exist (SKIP, MOVE) or exists already
    (ADD).
    """
    _refuse_past(row, when, now, "fire_time")
    if target is not None:
        _refuse_past(row, target, now, "move_to")
    _refuse_recorded(row, when)
    agenda = agenda_of(row)
    existing = agenda.at_nominal(when)
    if action == Action.ADD and existing is not None:
        raise InvalidSchedule(
            f"fire_time={when.isoformat()} is a fire time of {row.name!r} already.",
            option="fire_time",
        )
    if action != Action.ADD and existing is None:
        explanation = not_a_fire_time(row, agenda, when)
        raise InvalidSchedule(f"fire_time={when.isoformat()}: {explanation}", option="fire_time")
    if isinstance(existing, PlannedRun) and existing.at <= row.watermark_at:
        raise TransitionRefused(
            f"fire_time={when.isoformat()} of {row.name!r} has run, at {existing.at.isoformat()}.",
            option="fire_time",
        )


def _refuse_past(row: RecurringTask, when: datetime, now: datetime, field: str) -> None:
    through = max(now, row.watermark_at)
    if when <= through:
        raise TransitionRefused(
            f"{field}={when.isoformat()} is past: fire times up to {through.isoformat()} are"
            " decided. For a run of a past fire time use backfill().",
            option=field,
        )


def _refuse_recorded(row: RecurringTask, when: datetime) -> None:
    """Raise TransitionRefused if the fire time has an entry: if rolled or moved, it may have run
    before its time.
    """
    entry = ledger.ledger().filter(recurring_task=row.pk, unique_fire_time=when).first()
    if entry is not None:
        raise TransitionRefused(
            f"fire_time={when.isoformat()} of {row.name!r} is already in the ledger:"
            f" {entry.outcome}.",
            option="fire_time",
        )


def _replan(row: RecurringTask, schedule: RecurringTask, now: datetime) -> None:
    if schedule.status == RecurringStatus.ACTIVE:
        following = agenda_of(schedule).next(schedule.watermark_at)
        # If no fire time is left, the next tick records the skipped ones and ends the schedule.
        schedule.next_run_at = following.at if following else now
    keep(row, schedule, now)


_DAY = timedelta(days=1)


# How many parts and rules of a timetable are compared with the quota together. Of more only the sum
# of their runs is, because each comparison reads all of them.
_MOST_COMPARED = 20


# Days with added runs that are compared exactly, those with most of them first: each comparison
# reads all runs of the day.
_MOST_ADDED_TO = 20
_POSITIONS = re.compile(r"BYSETPOS=([-+\d,]*)", re.IGNORECASE)


def check_runs_per_day(row: RecurringTask) -> None:
    """Raise InvalidSchedule if a recurring task would run more often in a day than the quota of its
    tenant allows.

    Looks at two days of the schedule and of each part and rule of its timetable: that from the
    first run, which may be a part of a day on which it fires, and that from the first run after it.
    So a part that fires often on few days is found behind one that fires daily. BYSETPOS can select
    all its fires from one later day, so its positions are counted instead. On days to which
    overrides add runs, these are counted too.
    """
    most = None if ports.quotas is None else ports.quotas.runs_per_day(row.tenant)
    if most is None:
        return
    calendars = calendars_of([row])
    check_rolled(row, calendars)
    times, agenda = fire_times_of(row), agenda_of(row, calendars)
    positions = [
        number
        for part in row.timetable
        for listed in _POSITIONS.findall(str(part.get("rrule", "")))
        for number in listed.split(",")
    ]
    too_many = (
        f"runs_per_day: the tenant may run a recurring task {most:,} times in a day. Give a"
        " timetable that fires less often."
    )
    if len(positions) > most:
        raise InvalidSchedule(
            f"{too_many} BYSETPOS selects {len(positions):,} times, which may be on one day."
        )
    parts, compared, together = alternatives(times), set[datetime](), 0
    sources: list[Timetable | Agenda] = [agenda]
    if len(parts) > 1:
        sources += [BoundedTimetable(part, row.start_time, row.end_time) for part in parts]
    for source in sources:
        days, after = list[datetime](), row.watermark_at
        while len(days) < 2 and (first := source.next(after)) is not None:
            days.append(first.at)
            after = first.at + _DAY - TICK
        if len(parts) > _MOST_COMPARED and source is not agenda:
            counts = [source.count(day - TICK, day + _DAY - TICK).number for day in days]
            together += max(counts, default=0)
            exceeds = together > most
        else:
            exceeds = any(
                _has_more_runs(agenda, day, most) for day in days if day not in compared
            ) or (source is not agenda and any(_has_more_runs(source, day, most) for day in days))
            compared.update(days)
        if exceeds:
            raise InvalidSchedule(too_many)
    check_added_runs(row, agenda, most)


def check_added_runs(row: RecurringTask, agenda: Agenda, most: int) -> None:
    """Raise InvalidSchedule if a day to which overrides add runs has more than ``most``: it was
    closed, or the timetable fired less often, when they were added.
    """
    added = Counter[datetime]()
    for changed in overrides_of(row):
        at = changed.fire_time if changed.action == Action.ADD else changed.move_to
        if at is not None and at > row.watermark_at:
            added[_midnight(at)] += 1
    if not added:
        return
    # As many runs as the busiest of three days has without them.
    times, after, regular = fire_times_of(row), row.watermark_at, 0
    for _number in range(3):
        first = times.next(after)
        if first is None:
            break
        day = first.at - TICK
        counted = times.count(day, day + _DAY)
        regular = max(regular, counted.number if counted.exact else most)
        after = first.at + _DAY - TICK
    for place, (day, number) in enumerate(added.most_common(_MOST_ADDED_TO + 1)):
        is_compared = place < _MOST_ADDED_TO
        if _has_more_runs(agenda, day, most) if is_compared else regular + number > most:
            raise InvalidSchedule(
                f"runs_per_day: the tenant may run a recurring task {most:,} times in a day, and"
                f" {day.date()} would have more with those that overrides add. Remove some first."
            )


def _midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


_MOST_ROLLED = 5_000
"""Fire times that are rolled to one day. Each run of that day is compared with those of each closed
day, about 0.2 ms for each; each minute over a weekend is 4,320.
"""


def check_rolled(row: RecurringTask, calendars: Calendars) -> int:
    """Return the most days between two open days if the fire times between them are rolled to one
    day, otherwise 0. Raises InvalidSchedule if too many are.
    """
    days = business_days_of(row, calendars)
    if days is None or row.roll == Roll.SKIP:
        return 0
    fires = 0
    for part in alternatives(fire_times_of(row)):
        first = part.next(row.watermark_at)
        if first is not None:
            fires += part.count(first.nominal - TICK, first.nominal + _DAY - TICK).number
    closure = longest_closure(days)
    if fires * closure > _MOST_ROLLED:
        raise InvalidSchedule.of(
            "calendars",
            row.calendars,
            f"{closure:,} days pass between two open days, and the timetable fires {fires:,} times"
            f" a day: more than {_MOST_ROLLED:,} fire times would be rolled to one day. Give"
            " roll=SKIP, a timetable that fires less often, or a calendar with shorter closures.",
        )
    return closure


def _has_more_runs(agenda: Agenda | Timetable, start: datetime, most: int) -> bool:
    """Return whether there are more than ``most`` runs or fires in the day from ``start``."""
    before, last = start - TICK, start + _DAY - TICK
    counted = agenda.count(before, last)
    if counted.exact:
        return counted.number > most
    return sum(1 for _run in islice(walk(agenda, before, last), most + 1)) > most


def _check_runs_of_day(schedule: RecurringTask, at: datetime, option: str) -> None:
    """Raise InvalidSchedule if the day (UTC) to which an override, or the removal of one, brings a
    run has more runs than the quota of the tenant allows.
    """
    most = None if ports.quotas is None else ports.quotas.runs_per_day(schedule.tenant)
    if most is not None and _has_more_runs(agenda_of(schedule), _midnight(at), most):
        raise InvalidSchedule(
            f"runs_per_day: the tenant may run a recurring task {most:,} times in a day, and"
            f" {at.date()} would have more. Choose another day, or remove an override first.",
            option=option,
        )
