"""The type of an operation. The admin, the command line and an API read these values and define
none themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.workflows.operations import GraphReport

APP = "django_durable_tasks"
REASON_HELP = _("Why; kept with the name of the person who does it.")


class Target(StrEnum):
    """The kind of object to which an operation is applied."""

    TASKS = "tasks"
    DEAD_LETTERS = "dead letters"
    TASK = "task"
    DEPENDENCY = "dependency"
    WORKFLOW = "workflow run"
    SCHEDULE = "schedule"
    QUEUE = "queue"
    CALENDAR = "calendar"
    LIMIT = "limit"
    TENANT = "tenant"
    API_KEYS = "API keys"
    NOTIFICATION_SETTING = "notification setting"
    INSTALLATION = "installation"

    @property
    def is_queryset(self) -> bool:
        """Whether an operation takes a queryset instead of one object."""
        return self in (Target.TASKS, Target.DEAD_LETTERS, Target.API_KEYS)


class Reason(StrEnum):
    """Whether ``reason=`` may be empty."""

    OPTIONAL = "OPTIONAL"
    REQUIRED_IN_FORMS = "REQUIRED_IN_FORMS"
    """Required in a form, optional in a program or a script."""
    REQUIRED = "REQUIRED"


class ArgumentType(StrEnum):
    """The type of a field, which each interface renders."""

    TEXT = "text"
    INSTANT = "instant"
    INTEGER = "integer"
    SECONDS = "seconds"
    FLAG = "flag"
    CHOICE = "choice"
    JSON_LIST = "JSON list"
    JSON_OBJECT = "JSON object"
    TASK_ID = "task id"
    REQUEST_ID = "request id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of an operation in addition to ``reason`` and ``by``.

    ``choices`` are pairs of a value and its label. ``minimum`` is the least number. On the command
    line a positional field is not an option but follows the name of the object.
    """

    name: str
    kind: ArgumentType
    label: Any
    help: Any = ""
    required: bool = False
    choices: Sequence[tuple[str, Any]] = ()
    default: Any = None
    minimum: int | None = None
    positional: bool = False
    metavar: str | None = None


@dataclass(frozen=True, slots=True)
class OperationResult:
    """The changes of an operation.

    ``counts`` has the number of changed objects per kind of change; ``message`` is a sentence about
    it. ``report`` lists the changed tasks of an operation on dependent tasks, and ``value`` is the
    object that the Python API returned.
    """

    counts: Mapping[str, int]
    message: str = ""
    report: GraphReport | None = None
    value: Any = None

    @property
    def changed(self) -> int:
        """The number of changed objects."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One of several modes of an operation; passed as ``mode=``."""

    name: str
    title: Any
    help: Any


def _valid(_values: Mapping[str, Any]) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """One operation: its title, its permission, its fields and its function.

    ``perform`` takes the object (a queryset for ``Target.TASKS``, ``DEAD_LETTERS`` and
    ``API_KEYS``, the name of
    a queue, the scope of a limit, None for ``INSTALLATION``, otherwise the row), ``by=``,
    ``reason=``, the fields as keywords, ``mode=`` if there are modes and ``dry_run=`` if
    ``dry_run`` is true. It raises DurableTasksError if it refuses.

    ``confirm``: an interface shows what would change before it performs the operation, and the
    command line requires ``--yes`` for objects that the caller does not name. ``sweeps``: it also
    changes objects that the caller does not name. ``opens_tasks``: the changed objects are tasks
    that did not exist or had ended, so they count for quotas of open tasks. ``applies_to``: the
    objects that it can change; None if only the engine decides. ``statuses``: the statuses of the
    rows that offer it; empty means any. ``only_if_chosen``: objects that are changed only if they
    were selected one by one, not with a whole list; ``left_out`` returns the sentence about their
    number. ``group_by``: columns by which a confirmation counts the objects. ``check``: returns
    the errors of a set of fields by the name of the field. ``summary`` returns the sentence about
    several objects of an operation on one object. ``not_in_admin``, ``not_in_command`` and
    ``not_in_api``: why an interface does not offer it.
    """

    target: Target
    name: str
    title: Any
    help: Any
    permission: str
    perform: Callable[..., OperationResult]
    reason: Reason = Reason.OPTIONAL
    fields: Sequence[Argument] = ()
    modes: Sequence[Mode] = ()
    dry_run: bool = False
    confirm: bool = True
    sweeps: bool = False
    opens_tasks: bool = False
    applies_to: Q | None = None
    statuses: frozenset[str] = frozenset()
    only_if_chosen: Q | None = None
    left_out: Callable[[int], str] = str
    group_by: tuple[str, ...] = ()
    summary: Callable[[int], str] = str
    check: Callable[[Mapping[str, Any]], Mapping[str, str]] = field(default=_valid)
    not_in_admin: str = ""
    not_in_command: str = ""
    not_in_api: str = ""

    @property
    def key(self) -> str:
        """The key of the operation in the registry, such as ``tasks.cancel``."""
        return f"{self.target.replace(' ', '_').lower()}.{self.name}"

    def is_permitted(self, user: Any) -> bool:
        """Return whether this user has the permission. That of an optional app names its app."""
        name = self.permission if "." in self.permission else f"{APP}.{self.permission}"
        return bool(user.has_perm(name))

    def perform_on(self, rows: QuerySet[Any], *, by: str, reason: str) -> OperationResult:
        """Perform it on all rows of a queryset; if one row is refused, on none."""
        if self.target.is_queryset:
            return self.perform(rows, by=by, reason=reason)
        with transaction.atomic(using=rows.db):
            done = [self.perform(row, by=by, reason=reason) for row in rows.order_by("pk")]
        counts = Counter[str]()
        for outcome in done:
            counts.update(outcome.counts)
        return OperationResult(counts, self.summary(counts.total()))

    def fits(self, status: str) -> bool:
        """Return whether a row with this status offers it."""
        return not self.statuses or status in self.statuses
