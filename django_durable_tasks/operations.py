"""Operations: engine functions that the admin, the command line and an API offer to people.

``@operation`` makes the entry of the registry from the function in its capability. The interfaces
read these entries and define no titles, permissions and fields of their own.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum, StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.audit import acting
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.texts import counted

logger = logging.getLogger("django_durable_tasks.operations")
APP = "django_durable_tasks"
OF_ALL_TENANTS = "it changes rows of all tenants"
"""Why the API does not offer the operations on the whole installation."""
REASON_HELP = _("Why; kept with the name of the person who does it.")
R = TypeVar("R")
Progress = Callable[[str], None]
"""Called with a text after each batch of an operation on the whole installation."""


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


_KINDS: Mapping[Any, ArgumentType] = {
    str: ArgumentType.TEXT,
    datetime: ArgumentType.INSTANT,
    int: ArgumentType.INTEGER,
    float: ArgumentType.SECONDS,
    bool: ArgumentType.FLAG,
    Sequence: ArgumentType.JSON_LIST,
    Mapping: ArgumentType.JSON_OBJECT,
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that people give, in addition to ``reason`` and ``by``.

    It annotates a parameter of the function: ``at: Annotated[datetime, Argument(_("At"))]``. Name,
    kind, choices, default and ``required`` follow from the parameter if they are not given.

    ``choices`` are pairs of a value and its label. ``minimum`` is the least number. On the command
    line a positional field is not an option but follows the name of the object.
    """

    label: Any
    help: Any = ""
    kind: ArgumentType = ArgumentType.TEXT
    required: bool = False
    choices: Sequence[tuple[str, Any]] = ()
    minimum: int | None = None
    positional: bool = False
    metavar: str | None = None
    default: Any = None
    name: str = ""

    def of(self, parameter: inspect.Parameter, annotated: Any) -> Argument:
        """Return the argument of this parameter and type."""
        types = get_args(annotated) if isinstance(annotated, UnionType) else (annotated,)
        of_value = next(part for part in types if part is not NoneType)
        is_enum = isinstance(of_value, type) and issubclass(of_value, Enum)
        choices = self.choices or (
            [(part.value, part.value) for part in of_value] if is_enum else ()
        )
        kind = ArgumentType.CHOICE if choices else _KINDS.get(get_origin(of_value) or of_value)
        has_default = parameter.default is not inspect.Parameter.empty
        is_given = has_default and parameter.default not in (False, "")
        return replace(
            self,
            name=parameter.name,
            kind=kind if kind and self.kind == ArgumentType.TEXT else self.kind,
            choices=choices,
            required=self.required or not has_default,
            default=parameter.default if is_given else None,
            metavar=self.metavar or ("INSTANT" if kind == ArgumentType.INSTANT else None),
        )


@dataclass(frozen=True, slots=True)
class OperationResult:
    """The changes of an operation.

    ``counts`` has the number of changed objects per kind of change; ``message`` is a sentence about
    it. ``value`` is what the function returned.
    """

    counts: Mapping[str, int]
    message: str = ""
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """One operation: its title, its permission, its fields and its function.

    The function takes the object (a queryset for ``Target.TASKS``, ``DEAD_LETTERS`` and
    ``API_KEYS``, the name of a queue, the scope of a limit, otherwise the row), the fields as
    keywords, ``mode=`` if there are modes, and ``dry_run=`` if it has a dry run. It raises
    DurableTasksError if it refuses. ``audit.current_actor()`` returns who acts and why.

    ``title_of_one``: the title for one row of a queryset, if it differs.

    ``counted``: the word for what the function returns the number of (or a list of, or one), or a
    function from the returned value to the numbers by word. ``done``: the sentence about it, a
    format of ``number``, ``subject``, ``value`` and the fields, or a function of the returned value
    and these; ``unchanged`` is the one if the number is 0. ``summary``: the sentence about several
    objects of an operation on one object, a format of ``number``.

    ``confirm``: an interface shows what would change before it performs the operation, and the
    command line requires ``--yes`` for objects that the caller does not name. ``sweeps``: it also
    changes objects that the caller does not name. ``opens_tasks``: the changed objects are tasks
    that did not exist or had ended, so they count for quotas of open tasks. ``applies_to``: the
    objects that it can change; None if only the engine decides. ``statuses``: the statuses of the
    rows that offer it; empty means any. ``only_if_chosen``: objects that are changed only if they
    were selected one by one, not with a whole list; ``left_out`` is the sentence about their
    ``number``. ``group_by``: columns by which a confirmation counts the objects. ``check``: returns
    the errors of a set of fields by the name of the field. ``not_in_admin``, ``not_in_command`` and
    ``not_in_api``: why an interface does not offer it.
    """

    do_not_call_in_templates: ClassVar[bool] = True

    target: Target
    name: str
    title: Any
    help: Any
    permission: str
    function: Callable[..., Any]
    counted: str | Callable[[Any], Mapping[str, int]]
    title_of_one: Any = ""
    done: Any = ""
    unchanged: Any = ""
    summary: Any = ""
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
    left_out: Any = ""
    group_by: tuple[str, ...] = ()
    check: Callable[[Mapping[str, Any]], Mapping[str, str]] = field(default=lambda _values: {})
    not_in_admin: str = ""
    not_in_command: str = ""
    not_in_api: str = ""

    @property
    def key(self) -> str:
        """The key of the operation in the registry, such as ``tasks.cancel``."""
        return f"{self.target.replace(' ', '_').lower()}.{self.name}"

    def title_for(self, number: int) -> Any:
        """Return the title for this number of rows."""
        return (self.title_of_one if number == 1 else "") or self.title

    def is_permitted(self, user: Any) -> bool:
        """Return whether this user has the permission. That of an optional app names its app."""
        name = self.permission if "." in self.permission else f"{APP}.{self.permission}"
        return bool(user.has_perm(name))

    def fits(self, status: str) -> bool:
        """Return whether a row with this status offers it."""
        return not self.statuses or status in self.statuses

    def perform(self, subject: Any, /, *, by: str, reason: str, **values: Any) -> OperationResult:
        """Perform it for a person: call the function, and count and describe what it changed.

        ``subject`` is None for an operation on the whole installation. Raises InvalidOption without
        a reason if the operation requires one.
        """
        if self.reason == Reason.REQUIRED and not reason.strip():
            raise InvalidOption(f"reason is empty: {self.key} requires one.")
        with acting(by=by, reason=reason):
            value = self.function(*(() if subject is None else (subject,)), **values)
        counts = self._counts(value)
        number = sum(counts.values())
        if self.target == Target.INSTALLATION and not values.get("dry_run"):
            logger.info(
                "Operation %s has changed %s; by: %s; reason: %s",
                self.key,
                counted(number, "object"),
                by,
                reason,
            )
        sentence = self.done if number or not self.unchanged else self.unchanged
        told = {"subject": subject, "number": number, **values}
        message = sentence(value, **told) if callable(sentence) else sentence % _shown(value, told)
        return OperationResult(counts, str(message), value)

    def perform_on(self, rows: QuerySet[Any], *, by: str, reason: str) -> OperationResult:
        """Perform it on all rows of a queryset; if one row is refused, on none."""
        if self.target.is_queryset:
            return self.perform(rows, by=by, reason=reason)
        with transaction.atomic(using=rows.db):
            done = [self.perform(row, by=by, reason=reason) for row in rows.order_by("pk")]
        counts = Counter[str]()
        for outcome in done:
            counts.update(outcome.counts)
        return OperationResult(counts, str(self.summary % {"number": counts.total()}))

    def _counts(self, value: Any) -> Mapping[str, int]:
        if not isinstance(self.counted, str):
            return self.counted(value)
        if isinstance(value, list):
            return {self.counted: len(value)}
        return {self.counted: int(value) if isinstance(value, int) else 1}


def _shown(value: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as a sentence shows them: instants in UTC, and tenants by their slugs."""
    return {
        name: as_text(item) if isinstance(item, datetime) else getattr(item, "slug", item)
        for name, item in {**told, "value": value}.items()
    }


def no_progress(_text: str) -> None:
    """Report no progress."""


def as_text(at: datetime) -> str:
    """Return an instant as the sentences about operations show it."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationFunction(Operation, Generic[R]):
    """An operation that is called as its function, and may be given ``by`` and ``reason`` too."""

    function: Callable[..., R]

    def __call__(self, *args: Any, by: str = "", reason: str = "", **values: Any) -> R:
        """Call the function in the name of ``by``, or of the one who acts already."""
        with acting(by=by, reason=reason):
            return self.function(*args, **values)


OPERATIONS: dict[str, Operation] = {}
"""All operations, by their keys."""


def operation(
    target: Target, *, name: str = "", **described: Any
) -> Callable[[Callable[..., R]], OperationFunction[R]]:
    """Decorator: make a function an operation and add it to the registry.

    ``described`` are the further fields of Operation. The name of the operation is that of the
    function, its fields are the parameters that an Argument annotates, and it has a dry run if the
    function has a parameter ``dry_run``.
    """

    def decorate(function: Callable[..., R]) -> OperationFunction[R]:
        parameters = inspect.signature(function).parameters
        arguments = [
            argument.of(parameters[parameter], get_args(annotated)[0])
            for parameter, annotated in get_type_hints(function, include_extras=True).items()
            if get_origin(annotated) is Annotated
            for argument in annotated.__metadata__
        ]
        made = OperationFunction(
            target=target,
            name=name or function.__name__,
            function=function,
            fields=tuple(arguments),
            **{"dry_run": "dry_run" in parameters, **described},
        )
        OPERATIONS[made.key] = made
        return made

    return decorate
