"""Synchronizes the schedules declared in code and settings with their rows, one transaction per
schedule.

Declared values are written, except those that an operator has edited since. An operator's
pause and schedules of other sources are not changed. A schedule that is no longer declared is
marked and paused, so that removed code never fires. Called by ``durable sync``, the scheduler
at its start and the system checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from django.db import IntegrityError
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.audit import acting, current_actor, recorded
from django_durable_tasks.choices import RecurringStatus
from django_durable_tasks.exceptions import DurableTasksError, InvalidSchedule
from django_durable_tasks.models import DEFAULT_TENANT_ID, RecurringTask
from django_durable_tasks.models.schedules import RecurringTaskQuerySet
from django_durable_tasks.operations import OF_ALL_TENANTS, Argument, Target, operation
from django_durable_tasks.option_values import checked_key
from django_durable_tasks.registry import Declaration
from django_durable_tasks.schedules import lifecycle, options, schedule_cache, writes
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.errors import retry_on_deadlock

DECLARING = (options.CODE, options.SETTINGS)
NOTHING_DONE = (options.SyncAction.CLASH, options.SyncAction.REFUSE)


@dataclass(frozen=True, slots=True)
class Declared:
    """A valid declaration and the columns that it sets."""

    name: str
    source: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SyncStep:
    """The change that a sync makes to one schedule.

    ``changes`` maps columns to their old and new values. ``edited`` names the columns that keep an
    operator's value. The acts CLASH and REFUSE change nothing; ``reason`` contains the cause.
    """

    name: str
    act: options.SyncAction
    source: str = ""
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    edited: tuple[str, ...] = ()
    reason: str = ""


def declarations() -> tuple[dict[str, Declared], dict[str, str]]:
    """Return the valid declarations of code and settings, and the errors of the others, by name.

    The modules with tasks must be imported before this call.
    """
    valid: dict[str, Declared] = {}
    errors: dict[str, str] = {}
    code = registry.declarations()
    settings = [
        Declaration(
            name,
            values["task"],
            {key: value for key, value in values.items() if key != "task"},
            options.SETTINGS,
        )
        for name, values in (conf.settings().SCHEDULES or {}).items()
    ]
    for declaration in [*code.values(), *settings]:
        try:
            if declaration.source == options.SETTINGS and declaration.name in code:
                raise InvalidSchedule(
                    f"@recurring({declaration.name!r}) declares it too; remove one of the two."
                )
            checked_key("name", declaration.name)
            task = registry.get(declaration.task).options.name
            values = options.columns(declaration.name, declaration.options) | {"task": task}
            values = lifecycle.with_json_arguments(values)
            if not values.get("timetable"):
                raise InvalidSchedule(f"It needs one of {', '.join(options.KINDS)}.")
            valid[declaration.name] = Declared(declaration.name, declaration.source, values)
        except DurableTasksError as refused:
            errors[declaration.name] = str(refused)
    return {name: declared for name, declared in valid.items() if name not in errors}, errors


# Differences --------------------------------------------------------------------------------------


def diff(*, prune: bool = False, adopt: bool = False) -> list[SyncStep]:
    """Return the steps that ``apply`` would perform, ordered by name; empty if all rows match their
    declarations.
    """
    valid, errors = declarations()
    rows = {row.name: row for row in _rows().filter(source__in=DECLARING)}
    rows |= {row.name: row for row in _rows().filter(name__in=valid)}
    refused = [
        SyncStep(name, options.SyncAction.REFUSE, reason=reason) for name, reason in errors.items()
    ]
    names = {*valid, *rows} - errors.keys()
    steps = [
        _step(name, valid.get(name), rows.get(name), prune=prune, adopt=adopt) for name in names
    ]
    return sorted([*refused, *filter(None, steps)], key=lambda step: step.name)


def _rows() -> RecurringTaskQuerySet:
    return schedule_cache.recurring().for_tenant(DEFAULT_TENANT_ID)


def _step(
    name: str, declared: Declared | None, row: RecurringTask | None, *, prune: bool, adopt: bool
) -> SyncStep | None:
    if declared is None:
        if row is None or row.status == RecurringStatus.CANCELLED:
            return None
        if row.undeclared_at is not None and not prune:
            return None
        action = options.SyncAction.CANCEL if prune else options.SyncAction.PAUSE
        reason = f"neither code nor settings declare it; it calls {row.task}"
        return SyncStep(row.name, action, row.source, reason=reason)
    if row is None:
        return SyncStep(name, options.SyncAction.CREATE, declared.source)
    if row.source not in DECLARING and not adopt:
        owner = f"source {row.source!r}" if row.source else "hand"
        return SyncStep(
            name,
            options.SyncAction.CLASH,
            declared.source,
            reason=f"a row of this name was made by {owner}; --adopt it",
        )
    values = options.kept(declared.values)
    current = options.kept(
        {spec.attname: getattr(row, spec.attname) for spec in RecurringTask._meta.concrete_fields}
    )
    # A value that is no longer declared returns to the default of its column. A column without a
    # default keeps its value.
    defaults = {
        spec.attname: spec.get_default()
        for spec in RecurringTask._meta.concrete_fields
        if spec.has_default() or spec.null
    }
    merge = options.merged(
        current, row.declaration, values, {**defaults, "time_zone": ports.schedule_zone()}
    )
    changes = {column: (current[column], value) for column, value in sorted(merge.changes.items())}
    act, reason = options.SyncAction.CHANGE, ""
    if row.source not in DECLARING:
        act = options.SyncAction.ADOPT
    elif row.undeclared_at is not None:
        act = options.SyncAction.REVIVE
    elif not changes and row.declaration == values and row.source == declared.source:
        return None
    elif row.status == RecurringStatus.CANCELLED:
        reason = f"it has ended ({row.status_reason}) and stays so"
    return SyncStep(row.name, act, declared.source, changes, merge.edited, reason)


# Apply --------------------------------------------------------------------------------------------


@operation(
    Target.INSTALLATION,
    name="sync",
    title=_("Sync declared schedules"),
    help=_(
        "Creates and changes the rows of schedules that code and settings declare, and pauses"
        " schedules that are no longer declared."
    ),
    permission="",
    confirm=False,
    not_in_api=OF_ALL_TENANTS,
    not_in_admin="the web process may run a different release than the deployed one",
    counted=lambda steps: {"synced": sum(step.act not in NOTHING_DONE for step in steps)},
)
def apply(
    *,
    dry_run: bool = False,
    prune: Annotated[
        bool,
        Argument(
            _("Prune"), _("End schedules that are no longer declared instead of pausing them.")
        ),
    ] = False,
    adopt: Annotated[
        bool,
        Argument(
            _("Adopt"), _("Take over schedules of the same name that were not created by sync.")
        ),
    ] = False,
) -> list[SyncStep]:
    """Write the declarations to the rows and return the steps performed; one transaction per
    schedule. A dry run returns the steps that it would perform.

    A schedule that cannot be written is returned with the act REFUSE and does not stop the others.
    Repeated or concurrent calls have the same result as one call.
    """
    if dry_run:
        return diff(prune=prune, adopt=adopt)
    valid, _errors = declarations()
    done = []
    for step in diff(prune=prune, adopt=adopt):
        performed = (
            step
            if step.act in NOTHING_DONE
            else _do(step, valid.get(step.name), prune=prune, adopt=adopt)
        )
        done += [performed] if performed else []
    return done


@retry_on_deadlock
def _do(step: SyncStep, declared: Declared | None, *, prune: bool, adopt: bool) -> SyncStep | None:
    for _try in range(2):
        try:
            with acting(by=current_actor().by or "sync"), recorded("installation.sync"):
                row = _rows().filter(name=step.name).select_for_update().first()
                decided = _step(step.name, declared, row, prune=prune, adopt=adopt)
                if decided is not None and decided.act not in NOTHING_DONE:
                    _write(decided, declared, row)
                return decided
        except IntegrityError:
            continue  # a concurrent sync inserted the row: read it again
        except DurableTasksError as refused:
            return SyncStep(step.name, options.SyncAction.REFUSE, step.source, reason=str(refused))
    return SyncStep(
        step.name,
        options.SyncAction.REFUSE,
        step.source,
        reason="another process changes this row repeatedly; try again",
    )


def _write(step: SyncStep, declared: Declared | None, row: RecurringTask | None) -> None:
    if declared is None:
        if row is not None:
            row.undeclared_at = row.undeclared_at or database_now()
            writes.rewrite(row)
            if step.act == options.SyncAction.CANCEL:
                lifecycle.cancel(row, reason=options.UNDECLARED)
            elif row.status == RecurringStatus.ACTIVE:
                lifecycle.pause(row, reason=options.UNDECLARED)
        return
    declared_columns: dict[str, Any] = {
        "source": declared.source,
        "declaration": options.kept(declared.values),
        "undeclared_at": None,
    }
    if row is None:
        lifecycle.create(step.name, DEFAULT_TENANT_ID, {**declared.values, **declared_columns})
        return
    values = {
        column: declared.values.get(column, new) for column, (_, new) in step.changes.items()
    } | declared_columns
    ended = row.status == RecurringStatus.CANCELLED
    revived = row.undeclared_at is not None and row.status_reason == options.UNDECLARED
    if revived and ended:
        by = current_actor().by
        values |= {"status": RecurringStatus.ACTIVE.value, "status_reason": "", "status_by": by}
    lifecycle.change(row, values)
    if revived and not ended:
        lifecycle.resume(row)


def waiting(steps: Sequence[SyncStep]) -> str:
    """Describe the pending steps in one sentence; empty if there are none."""
    if not steps:
        return ""
    names = ", ".join(f"{step.name} ({step.act})" for step in steps[:5])
    more = f" and {len(steps) - 5} more" if len(steps) > 5 else ""
    return f"Declared schedules differ from the rows: {names}{more}. Run `manage.py durable sync`."
