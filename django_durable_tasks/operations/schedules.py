"""Operations on schedules and calendars."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.db.models import Q
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.choices import Action, CatchUpOrder, RecurringStatus
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import Calendar, RecurringTask
from django_durable_tasks.operations.operation import (
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Reason,
    Target,
)
from django_durable_tasks.schedules import calendars
from django_durable_tasks.schedules.misfires import BackfillReport, Reprocess

# Operations on one schedule, a RecurringTask.


_ACTIVE, _PAUSED = RecurringStatus.ACTIVE, RecurringStatus.PAUSED
_NOT_ENDED = frozenset({_ACTIVE, _PAUSED})
_INSTANT = _("A local time in the time zone of the schedule, or a time with its UTC offset.")
MOST_FIRE_TIMES = 1_000


def _text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _pause(
    row: RecurringTask, *, by: str, reason: str, until: datetime | None = None
) -> OperationResult:
    row.pause(reason, until=until, by=by)
    message = (
        gettext("Paused until %s. It resumes automatically.") % _text(until)
        if until
        else gettext("Paused until it is resumed.")
    )
    return OperationResult({"paused": 1}, message)


def _resume(
    row: RecurringTask,
    *,
    by: str,
    reason: str,
    run_missed: bool = False,
    pace: float | None = None,
) -> OperationResult:
    was_paused = row.status == _PAUSED
    row.resume(by=by, reason=reason, run_missed=run_missed, pace=pace)
    message = (
        gettext("Resumed. The missed runs of the pause are caught up.")
        if run_missed
        else gettext("Resumed. Missed runs of the pause are not caught up.")
    )
    return OperationResult({"resumed": int(was_paused)}, message)


def _snooze(row: RecurringTask, *, by: str, reason: str, until: datetime) -> OperationResult:
    row.snooze(until, by=by, reason=reason)
    return OperationResult(
        {"snoozed": 1}, gettext("Snoozed until %s. It resumes automatically.") % _text(until)
    )


def _cancel(row: RecurringTask, *, by: str, reason: str) -> OperationResult:
    row.cancel(reason, by=by)
    return OperationResult({"cancelled": 1}, gettext("Ended permanently."))


def _run_now(
    row: RecurringTask, *, by: str, reason: str, request_id: str | None = None
) -> OperationResult:
    task = row.trigger_now(request_id=request_id, by=by, reason=reason)
    return OperationResult({"created": 1}, gettext("Created task %s.") % task.pk, value=task)


def _backfill(
    row: RecurringTask,
    *,
    by: str,
    reason: str,
    start: datetime,
    end: datetime,
    dry_run: bool = False,
    **options: Any,
) -> OperationResult:
    who = {"by": by, "reason": reason}
    done: BackfillReport = row.backfill(start, end, dry_run=dry_run, **who, **options)
    parts = (
        ngettext("Created %d task", "Created %d tasks", done.created) % done.created,
        ngettext("replayed %d task", "replayed %d tasks", done.replayed) % done.replayed,
        ngettext("left %d fire time unchanged", "left %d fire times unchanged", done.left)
        % done.left,
    )
    message = f"{', '.join(parts)}. {done.remark}".strip()
    counts = {"created": done.created, "replayed": done.replayed}
    return OperationResult(counts, message, value=done)


def _override(
    row: RecurringTask,
    *,
    by: str,
    reason: str,
    fire_time: datetime,
    action: str,
    move_to: datetime | None = None,
) -> OperationResult:
    moved = {} if move_to is None else {"move_to": move_to}
    made = row.override(fire_time, action, reason=reason, by=by, **moved)
    message = gettext("Override saved: %(action)s for the fire time %(at)s.") % {
        "action": action,
        "at": _text(fire_time),
    }
    return OperationResult({"overridden": 1}, message, value=made)


def _remove_override(
    row: RecurringTask, *, by: str, reason: str, fire_time: datetime
) -> OperationResult:
    removed = row.withdraw(fire_time, by=by, reason=reason)
    message = (
        gettext("Override removed: %s follows the schedule again.")
        if removed
        else gettext("There was no override of %s.")
    )
    return OperationResult({"withdrawn": int(removed)}, message % _text(fire_time))


def refuse_nothing(outcome: OperationResult) -> None:
    """Raise TransitionRefused if a backfill has created and replayed no task."""
    if not outcome.changed:
        raise TransitionRefused(gettext("Nothing was changed. %s") % outcome.message)


def _move_to_matches(given: Mapping[str, Any]) -> Mapping[str, str]:
    if (given.get("action") == Action.MOVE) != bool(given.get("move_to")):
        return {"move_to": gettext("Required with MOVE, and not allowed otherwise.")}
    return {}


def _paused_several(number: int) -> str:
    return ngettext("Paused %d schedule.", "Paused %d schedules.", number) % number


def _resumed_several(number: int) -> str:
    return ngettext("Resumed %d schedule.", "Resumed %d schedules.", number) % number


def _ended_several(number: int) -> str:
    return ngettext("Ended %d schedule.", "Ended %d schedules.", number) % number


_FIRE_TIME = Argument(
    name="fire_time",
    kind=ArgumentType.INSTANT,
    label=_("Fire time"),
    help=_INSTANT,
    required=True,
    positional=True,
    metavar="AT",
)
PAUSE = Operation(
    target=Target.SCHEDULE,
    name="pause",
    title=_("Pause schedule"),
    help=_(
        "It does not fire until it is resumed. Missed fire times are recorded as PAUSED. Open tasks"
        " continue."
    ),
    permission="pause_recurringtask",
    perform=_pause,
    reason=Reason.REQUIRED_IN_FORMS,
    statuses=_NOT_ENDED,
    applies_to=Q(status=_ACTIVE),
    summary=_paused_several,
    fields=(
        Argument(
            name="until",
            kind=ArgumentType.INSTANT,
            label=_("Until"),
            help=_("When it resumes automatically. If empty, it stays paused until it is resumed."),
            metavar="INSTANT",
        ),
    ),
)
RESUME = Operation(
    target=Target.SCHEDULE,
    name="resume",
    title=_("Resume schedule"),
    help=_(
        "It fires again from now on. Missed runs of the pause are not caught up unless you ask for"
        " it."
    ),
    permission="pause_recurringtask",
    perform=_resume,
    statuses=frozenset({_PAUSED}),
    applies_to=Q(status=_PAUSED),
    summary=_resumed_several,
    fields=(
        Argument(
            name="run_missed",
            kind=ArgumentType.FLAG,
            label=_("Catch up"),
            help=_("Run fire times missed during the pause, by the catch-up options."),
        ),
        Argument(
            name="pace",
            kind=ArgumentType.SECONDS,
            label=_("Pace"),
            help=_("Seconds between two runs that are caught up. Default: the schedule's."),
            minimum=0,
            metavar="SECONDS",
        ),
    ),
)
SNOOZE = Operation(
    target=Target.SCHEDULE,
    name="snooze",
    title=_("Snooze schedule"),
    help=_("Fire times up to an instant are recorded as PAUSED. Then it resumes automatically."),
    permission="pause_recurringtask",
    perform=_snooze,
    statuses=frozenset({_ACTIVE}),
    fields=(
        Argument(
            name="until",
            kind=ArgumentType.INSTANT,
            label=_("Until"),
            help=_INSTANT,
            required=True,
            positional=True,
            metavar="UNTIL",
        ),
    ),
)
RUN_NOW = Operation(
    target=Target.SCHEDULE,
    name="run_now",
    title=_("Run schedule now"),
    help=_(
        "It runs once in addition to its timetable, also if it is paused. The run is recorded as"
        " MANUAL and not counted for max_runs, and the next fire time stays as it is."
    ),
    permission="trigger_recurringtask",
    opens_tasks=True,
    perform=_run_now,
    statuses=_NOT_ENDED,
    fields=(
        Argument(
            name="request_id",
            kind=ArgumentType.REQUEST_ID,
            label=_("Request id"),
            help=_("A name for this run. Two calls with the same name run once."),
            metavar="ID",
        ),
    ),
)
OVERRIDE = Operation(
    target=Target.SCHEDULE,
    name="override",
    title=_("Override a fire time"),
    help=_("Skip one fire time, move it, or add one that the timetable does not have."),
    permission="pause_recurringtask",
    perform=_override,
    reason=Reason.REQUIRED_IN_FORMS,
    statuses=_NOT_ENDED,
    check=_move_to_matches,
    fields=(
        _FIRE_TIME,
        Argument(
            name="action",
            kind=ArgumentType.CHOICE,
            label=_("Action"),
            choices=tuple((action.value, action.value) for action in Action),
            required=True,
        ),
        Argument(
            name="move_to",
            kind=ArgumentType.INSTANT,
            label=_("Move to"),
            help=_("The new time of a fire time that is moved."),
        ),
    ),
)
BACKFILL = Operation(
    target=Target.SCHEDULE,
    name="backfill",
    title=_("Backfill schedule"),
    help=_(
        "Runs fire times of the past that have no run. A fire time that has run is not run twice."
        " The timetable continues in parallel."
    ),
    permission="trigger_recurringtask",
    opens_tasks=True,
    perform=_backfill,
    statuses=_NOT_ENDED,
    dry_run=True,
    fields=(
        Argument(
            name="start",
            kind=ArgumentType.INSTANT,
            label=_("Start"),
            help=_INSTANT,
            required=True,
            positional=True,
            metavar="FROM",
        ),
        Argument(
            name="end",
            kind=ArgumentType.INSTANT,
            label=_("End"),
            help=_("Included, and not in the future."),
            required=True,
            positional=True,
            metavar="TO",
        ),
        Argument(
            name="reprocess",
            kind=ArgumentType.CHOICE,
            label=_("Fire times that have run"),
            help=_("Whether tasks of the range are replayed."),
            choices=(
                (Reprocess.NONE, _("leave them unchanged")),
                (Reprocess.FAILED, _("replay failed tasks")),
                (Reprocess.ALL, _("replay all ended tasks")),
            ),
            default=Reprocess.NONE,
        ),
        Argument(
            name="concurrency",
            kind=ArgumentType.INTEGER,
            label=_("Concurrency"),
            help=_("How many tasks run at the same time."),
            default=1,
            minimum=1,
        ),
        Argument(
            name="order",
            kind=ArgumentType.CHOICE,
            label=_("Order"),
            help=_("Which fire times run first."),
            choices=tuple((order.value, order.value) for order in CatchUpOrder),
            default=CatchUpOrder.OLDEST,
        ),
        Argument(
            name="limit",
            kind=ArgumentType.INTEGER,
            label=_("Limit"),
            help=_("Refuse a range with more fire times."),
            default=MOST_FIRE_TIMES,
            minimum=1,
        ),
    ),
)
REMOVE_OVERRIDE = Operation(
    target=Target.SCHEDULE,
    name="remove_override",
    title=_("Remove an override"),
    help=_("The fire time follows the schedule again."),
    permission="pause_recurringtask",
    perform=_remove_override,
    statuses=_NOT_ENDED,
    fields=(_FIRE_TIME,),
)
CANCEL = Operation(
    target=Target.SCHEDULE,
    name="cancel",
    title=_("End schedule permanently"),
    help=_(
        "It never fires again and cannot be resumed. Open tasks continue, and the ledger is kept."
    ),
    permission="pause_recurringtask",
    perform=_cancel,
    reason=Reason.REQUIRED_IN_FORMS,
    statuses=_NOT_ENDED,
    applies_to=~Q(status=RecurringStatus.CANCELLED),
    summary=_ended_several,
)

SCHEDULE_OPERATIONS = (
    PAUSE,
    RESUME,
    SNOOZE,
    RUN_NOW,
    OVERRIDE,
    BACKFILL,
    REMOVE_OVERRIDE,
    CANCEL,
)


def _save(name: str, *, by: str, reason: str, **values: Any) -> OperationResult:
    """Take the same keywords as ``schedules.calendars.upsert``."""
    saved = calendars.upsert(name, by=by, reason=reason, **values)
    return OperationResult({"saved": 1}, gettext("Saved calendar %s.") % name, value=saved)


def _delete(calendar: Calendar, *, by: str, reason: str) -> OperationResult:
    removed = Calendar.objects.remove(
        calendar.name, tenant=calendar.tenant_id, by=by, reason=reason
    )
    return OperationResult(
        {"deleted": int(removed)}, gettext("Deleted calendar %s.") % calendar.name
    )


def _deleted(number: int) -> str:
    return ngettext("Deleted %d calendar.", "Deleted %d calendars.", number) % number


SAVE = Operation(
    target=Target.CALENDAR,
    name="save",
    title=_("Save calendar"),
    help=_(
        "Creates or changes a calendar. Schedules that use it get their next fire times in the same"
        " transaction."
    ),
    permission="change_calendar",
    perform=_save,
    confirm=False,
)
DELETE = Operation(
    target=Target.CALENDAR,
    name="delete",
    title=_("Delete calendar"),
    help=_(
        "Calendars and their dates are deleted. A calendar that a schedule uses is not deleted."
    ),
    permission="delete_calendar",
    perform=_delete,
    applies_to=Q(),
    summary=_deleted,
)

CALENDAR_OPERATIONS = (SAVE, DELETE)


OPERATIONS = (
    *SCHEDULE_OPERATIONS,
    *CALENDAR_OPERATIONS,
)
