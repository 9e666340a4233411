"""Write the pages that are made from the code: ``python -m docs.generate``. A test fails while one is stale."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from django_durable_tasks import exceptions
from django_durable_tasks.conf import InvalidSetting, Settings
from django_durable_tasks.rules.states import OPEN, TRANSITIONS, Status, Transition
from docs.operator_pages import checks_page, commands_page

ROOT = Path(__file__).resolve().parent
_MADE = "<!-- made by `python -m docs.generate`; edit the code it names, not this page -->\n"
_NOT_DRAWN = ("edit", "replay", "rerun", "force_complete")
_KINDS = {"duration": "seconds or timedelta", "count": "whole number", "value": "as described"}

_SETTINGS = f"""{_MADE}
# Settings

All in one mapping in your Django settings. Every key has a default; leave out what you do not change.

```python
DURABLE_TASKS = {{
    "LEASE": 120,
    "RETENTION": {{"SUCCESS": 86_400, "FAILED": None}},
}}
```

Durations are seconds greater than 0, or a `timedelta`. An unknown key is refused with the nearest right one
(`InvalidSetting`, and the system check `durable_tasks.E001`). `LEASE` must be at least twice `HEARTBEAT`. The settings
are read once; a process must be restarted to see a change. Made from the fields of `django_durable_tasks/conf.py`.

| key | default | takes | what it is |
|---|---|---|---|
"""

_STATES = f"""{_MADE}
# States and transitions

A task is in one status; only the named transitions move it. The functions of `lifecycle/transitions/` are the only
writers, and each shows the status (and the epoch) that it leaves, so a move that comes too late changes nothing. Made
from `django_durable_tasks/rules/states.py`.

"Ready", "retrying" and "overdue" are no statuses but questions: `Task.objects.due(now)`, `.retrying()`,
`.overdue(now)`.

"""

_AFTER_STATES = """
* **The picture** leaves out `edit` (the status stays), `replay`, `rerun` and `force_complete`.
* **`RUNNING` to `CANCELLED`** happens only after somebody asked (`cancel_requested_at`) and the run has ended, or when
  the body raises Celery's `Ignore`, or a revoke terminated it.
* **`FAILED`** means exactly one open dead letter, until it is replayed, completed by force, or discarded.
* **`BLOCKED`** waits for upstream tasks (`depends_on`, workflows), for an approval, or for an operator's hold.
* The statuses of a log row (`TaskExecutionLog.status`) say how one attempt ended: `SUCCESS FAILED RETRY LOST
  CANCELLED`, `FENCED` (its ending was refused, another owner had the row) and `DUPLICATE` (it was not started, see
  `unique_for`).
"""

_ERRORS = f"""{_MADE}
# Errors

All of them derive from `DurableTasksError`, in `django_durable_tasks.exceptions`; `InvalidSetting` alone is Django's
`ImproperlyConfigured`, in `django_durable_tasks.conf`. What can be refused is refused at the call, inside your
transaction, before anything is written.

| error | is also | meaning |
|---|---|---|
"""


def settings_page() -> str:
    """Return the page of the settings."""
    return _SETTINGS + "".join(_setting(spec) for spec in dataclasses.fields(Settings))


def _setting(spec: dataclasses.Field[object]) -> str:
    default = f"`{spec.default!r}`".replace("|", "\\|")
    return f"| `{spec.name}` | {default} | {_KINDS[spec.metadata['kind']]} | {spec.metadata['help']} |\n"


def states_page() -> str:
    """Return the page of the states: the diagram and the table."""
    rows = "".join(_row(move) for move in TRANSITIONS.values())
    table = "| transition | from | to | guard | also writes |\n|---|---|---|---|---|\n" + rows
    open_ = f"Open: {_listed(OPEN)}. Ended: {_listed(set(Status) - OPEN)}.\n\n"
    return f"{_STATES}{open_}```mermaid\n{_diagram()}```\n\n{table}{_AFTER_STATES}"


def _listed(statuses: Iterable[Status]) -> str:
    chosen = set(statuses)
    return " ".join(f"`{status.value}`" for status in Status if status in chosen) or "–"


def _row(move: Transition) -> str:
    sources = _listed(move.sources)
    return f"| `{move.name}` | {sources} | {_listed(move.targets)} | {move.guard} | {move.writes} |\n"


def _diagram() -> str:
    """Return the moves between different statuses, one arrow for all transitions of the same pair."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for move in TRANSITIONS.values():
        for source in [status.value for status in sorted(move.sources)] or ["[*]"]:
            for target in [status.value for status in sorted(move.targets)]:
                if source != target and move.name not in _NOT_DRAWN:
                    arrows.setdefault((source, target), []).append(move.name)
    lines = [f"    {source} --> {target}: {', '.join(names)}\n" for (source, target), names in arrows.items()]
    return "stateDiagram-v2\n" + "".join(lines)


def errors_page() -> str:
    """Return the page of the errors."""
    known = [value for value in vars(exceptions).values() if isinstance(value, type)]
    rows = [_error(kind) for kind in known if issubclass(kind, exceptions.DurableTasksError)]
    return _ERRORS + "".join(rows) + _error(InvalidSetting)


def _error(kind: type) -> str:
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
    return f"| `{kind.__name__}` | {bases} | {(kind.__doc__ or '').strip()} |\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/settings.md": settings_page,
    "reference/states.md": states_page,
    "reference/errors.md": errors_page,
    "reference/commands.md": lambda: _MADE + commands_page(),
    "reference/checks.md": lambda: _MADE + checks_page(),
}


def main() -> None:
    """Write all of them."""
    for name, page in PAGES.items():
        (ROOT / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
