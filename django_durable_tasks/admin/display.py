"""HTML of values: everything is escaped, secrets are masked, badges are classes of the
style sheet.
"""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from typing import Any
from urllib.parse import urlencode

from django.apps import apps
from django.contrib import admin
from django.db.models import CharField, DateTimeField, Field, JSONField, TextField
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, registry
from django_durable_tasks.audit import masked_arguments
from django_durable_tasks.celery import inspect as celery_inspect
from django_durable_tasks.exceptions import EncryptionError
from django_durable_tasks.masking import masked, masked_text
from django_durable_tasks.models import Task
from django_durable_tasks.models.fields import EncryptedJSONField
from django_durable_tasks.store.clock import host_now
from django_durable_tasks.tasks.explanations import ago

NOTHING = "-"
_ERROR_LINE = 120
_SHORT = 60


def badge(kind: str, text: Any) -> SafeString:
    """Return a badge; ``kind`` is a class name of the style sheet."""
    return format_html('<span class="durable-badge durable-{}">{}</span>', kind.lower(), text)


def badges(marks: list[tuple[str, str]]) -> SafeString | str:
    """Return badges side by side."""
    return format_html_join(" ", "{}", ((badge(kind, text),) for kind, text in marks))


_SIGNS = {
    "SUCCESS": "✓",
    "DISPATCHED": "✓",
    "ROLLED": "✓",
    "FAILED": "✗",
    "FAILED_TO_CREATE": "✗",
    "MISSED": "✗",
    "RUNNING": "…",
    "QUEUED": "…",
    "PENDING": "…",
    "MANUAL": "…",
}

_SIGN = '<span class="durable-mark durable-{0}" role="img" aria-label="{1}" title="{1}">{2}</span>'


def marks(outcomes: Iterable[tuple[str, datetime, int]]) -> SafeString | str:
    """Return one small badge for each outcome, with the outcome, its instant and its count as a
    tooltip and for screen readers.
    """
    signs = [
        (
            word.lower(),
            f"{word} {instant(moment)}{f' ({count:,})' if count > 1 else ''}",
            _SIGNS.get(word, "–"),
        )
        for word, moment, count in outcomes
    ]
    if not signs:
        return NOTHING
    each = format_html_join("", _SIGN, signs)
    return format_html('<span class="durable-marks">{}</span>', each)


def beneath(upper: Any, lower: str) -> SafeString | str:
    """Return a value with a smaller line below it."""
    return (
        format_html('{}<span class="durable-beneath">{}</span>', upper, lower)
        if lower
        else str(upper)
    )


_BAR = (
    '<svg class="durable-progress" viewBox="0 0 100 8" preserveAspectRatio="none" role="img"'
    ' aria-label="{0}"><title>{0}</title>{1}</svg>'
)
_PART = '<rect class="durable-part-{}" x="{}" y="0" width="{}" height="8"/>'


def bar(words: str, whole: float, counts: Iterable[tuple[str, float]]) -> SafeString:
    """Return a bar with these parts of the whole, by status. ``words``: for screen readers."""
    x, drawn = 0.0, []
    for status, number in counts:
        width = 100 * number / whole
        drawn.append((status.lower(), f"{x:.2f}", f"{width:.2f}"))
        x += width
    return format_html(_BAR, words, format_html_join("", _PART, drawn))


def lines(texts: Iterable[str]) -> SafeString:
    """Return texts, one per line."""
    return format_html_join("", "<div>{}</div>", ((text,) for text in texts))


def block(text: str) -> SafeString | str:
    """Return preformatted text in a box that scrolls."""
    return format_html('<pre class="durable-text">{}</pre>', text) if text else NOTHING


def folded(summary: Any, text: str, *, is_open: bool = False) -> SafeString | str:
    """Return a long text that a click folds or expands, without a script."""
    if not text:
        return NOTHING
    return format_html(
        '<details class="durable-fold"{}><summary>{}</summary><pre'
        ' class="durable-text">{}</pre></details>',
        SafeString(" open" if is_open else ""),
        summary,
        text,
    )


def link(url: str, text: Any) -> SafeString:
    """Return a link."""
    return format_html('<a href="{}">{}</a>', url, text)


def row_link(model: str, key: Any, text: Any = None) -> SafeString | str:
    """Return a link to the page of a row with this key, if there is one."""
    return link(page_of(model, key), key if text is None else text) if key else NOTHING


def page_of(model: str, key: Any) -> str:
    """Return the URL of a row's page."""
    return reverse(f"admin:django_durable_tasks_{model}_change", args=[key])


def list_of(model: str, **filters: Any) -> str:
    """Return the URL of a list with filters."""
    address = reverse(f"admin:django_durable_tasks_{model}_changelist")
    return f"{address}?{urlencode(filters)}" if filters else address


def short(key: Any) -> str:
    """Return the end of an id; ids of the same minute have a common beginning."""
    return str(key)[-8:]


def named_tasks(keys: Iterable[uuid.UUID | None]) -> dict[uuid.UUID, Task]:
    """Return these tasks with only their names and statuses; one statement, none if there are no
    keys.
    """
    tasks = Task.objects.using(conf.settings().DATABASE).only("name", "step", "status", "tenant_id")
    by_key: dict[uuid.UUID, Task] = tasks.in_bulk({key for key in keys if key is not None})
    return by_key


def task_title(task: Task) -> str:
    """Return the name of a task in its workflow: its step, otherwise the task name."""
    return task.step or task.name


def task_link(key: uuid.UUID, tasks: Mapping[uuid.UUID, Task]) -> SafeString:
    """Link a task by its step or name, with its status; a deleted one is shown by its id."""
    task = tasks.get(key)
    if task is None:
        return format_html("{} {}", short(key), badge("gone", _("deleted")))
    link_html = row_link("task", key, task_title(task))
    return format_html("{} {}", link_html, badge(task.status, task.status))


def duration(seconds: float | None) -> str:
    """Return a duration as text; exact below two minutes."""
    if seconds is None:
        return NOTHING
    return f"{max(seconds, 0.0):.3g} s" if abs(seconds) < 120 else ago(seconds)


def instant(moment: datetime | None) -> str:
    """Return an instant to the second, in the site's time zone.

    With ``USE_TZ = False`` times of Django's own tables have no zone.
    """
    if moment is None:
        return NOTHING
    if timezone.is_naive(moment):
        moment = timezone.make_aware(moment, timezone.get_default_timezone())
    return f"{timezone.localtime(moment):%Y-%m-%d %H:%M:%S}"


def today() -> date:
    """Return the date of today in the site's time zone, whatever USE_TZ is."""
    return timezone.localdate(host_now())


def since(moment: datetime | None, now: datetime) -> str:
    """Return the time since or until an instant."""
    if moment is None:
        return NOTHING
    seconds = (now - moment).total_seconds()
    return f"{ago(seconds)} ago" if seconds >= 0 else f"in {ago(seconds)}"


# Secrets ------------------------------------------------------------------------------------------


def reads_secrets(request: HttpRequest) -> bool:
    """Return whether this user may see unmasked arguments and results."""
    return bool(request.user.has_perm("django_durable_tasks.view_task_arguments"))


def clean(text: str) -> str:
    """Return a text with its secrets masked."""
    return masked_text(text, conf.settings().SECRET_NAMES)


def first_line(text: str) -> str:
    """Return the first line of an error, masked and short."""
    line = clean(text).partition("\n")[0]
    return line if len(line) <= _ERROR_LINE else f"{line[:_ERROR_LINE]}…"


def pretty(value: Any) -> str:
    """Return indented JSON; short values are on one line."""
    short = json.dumps(value, ensure_ascii=False)
    return short if len(short) < _SHORT else json.dumps(value, indent=2, ensure_ascii=False)


def value_block(value: Any, *, plain: bool) -> SafeString | str:
    """Return a JSON value, masked unless ``plain``."""
    if value is None:
        return NOTHING
    return block(pretty(value if plain else masked(value, conf.settings().SECRET_NAMES)))


def arguments_block(name: str, called_with: Any) -> SafeString | str:
    """Return the arguments of a row as a call of this task, or why they cannot be decrypted.

    They are masked by the names of their parameters unless the user may read them.
    """
    try:
        args, kwargs = called_with.args, called_with.kwargs
    except EncryptionError as error:
        return block(str(error))
    if not called_with.read_plain:
        if registry.find(name) is None:
            celery_inspect.load_tasks()
        args, kwargs = masked_arguments(name, args, kwargs).values()
    lines = [pretty(value) for value in args] + [
        f"{name}={pretty(value)}" for name, value in kwargs.items()
    ]
    return block(",\n".join(lines)) if lines else NOTHING


# Columns ------------------------------------------------------------------------------------------


def column(label: Any, show: Callable[[Any], Any], name: str = "") -> Any:
    """Return a column of lists and pages that shows something of a row."""

    @admin.display(description=label)
    def shown(row: Any) -> Any:
        return show(row)

    shown.__name__ = name or show.__name__
    return shown


@functools.cache
def column_of(field: Field[Any, Any], label: Any = None) -> Any:
    """Return the column that shows a field of a model by its type; None if Django shows it.

    Instants are shown to the second, as log files do. Secrets in texts and JSON values are masked;
    encrypted values are plain if ``get_object`` found that the user may read them.
    """
    is_text = isinstance(field, CharField | TextField) and not field.choices
    if not (is_text or isinstance(field, DateTimeField | JSONField)):
        return None

    def show(row: Any) -> Any:
        try:
            value = getattr(row, field.name)
        except EncryptionError as error:
            return block(str(error))
        if value is None or value == "":
            return NOTHING
        if isinstance(field, DateTimeField):
            return instant(value)
        if isinstance(field, JSONField):
            is_plain = isinstance(field, EncryptedJSONField) and getattr(row, "read_plain", False)
            return value_block(value, plain=is_plain) if value else NOTHING
        if isinstance(field, TextField):
            return block(clean(value))
        return clean(value) if isinstance(value, str) else value

    display_column = column(label or field.verbose_name, show, field.name)
    display_column.admin_order_field = field.name
    return display_column


# Other packages -----------------------------------------------------------------------------------


def stored_result(celery_id: str) -> SafeString | str:
    """Return a link to the result that django-celery-results stored for this Celery id, if it is
    installed.
    """
    if not celery_id or not apps.is_installed("django_celery_results"):
        return celery_id or NOTHING
    try:
        results = reverse("admin:django_celery_results_taskresult_changelist")
    except NoReverseMatch:
        return celery_id
    return link(f"{results}?{urlencode({'task_id__exact': celery_id})}", celery_id)
