"""``durable verify``: checks the consistency of the tables, and repairs findings that can be
repaired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from django_durable_tasks.celery import inspect
from django_durable_tasks.command.arguments import argument, count
from django_durable_tasks.command.subcommand import (
    OK,
    REFUSED,
    UNHEALTHY,
    Options,
    Output,
    hidden,
    perform,
    refuse,
    subcommand,
    table,
)
from django_durable_tasks.contrib.verify import runner
from django_durable_tasks.contrib.verify.check import GROUPS, Finding
from django_durable_tasks.contrib.verify.runner import CHECKS, MOST, Answer, RepairResult

_SHOWN = ("check", "looked_at", "findings", "repaired", "question")
_BAR = 30


class _Bar:
    """A progress bar in one line of a terminal. Writes nothing if the output is not a terminal."""

    def __init__(self, stream: Any) -> None:
        self._stream = getattr(stream, "_out", stream)
        self._watched = bool(getattr(self._stream, "isatty", lambda: False)())

    def __call__(self, name: str, part: float) -> None:
        if self._watched:
            done = round(_BAR * part)
            self._stream.write(f"\r\x1b[K[{'#' * done}{'.' * (_BAR - done)}] {part:4.0%} {name}")
            self._stream.flush()

    def clear(self) -> None:
        """Remove the progress bar."""
        if self._watched:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


@subcommand(
    argument(
        "--only",
        metavar="CHECK",
        nargs="+",
        default=[],
        help=(
            f"Run these checks or groups. Checks: {', '.join(CHECKS)}. Groups: {', '.join(GROUPS)}."
        ),
    ),
    argument("--repair", action="store_true", help="Repair the findings that can be repaired."),
    argument(
        "--limit",
        metavar="N",
        type=count,
        default=MOST,
        help=f"The maximum number of findings of each check. Default: {MOST:,}.",
    ),
    operations=(runner.repair,),
)
def verify(options: Options, out: Output) -> int:
    """Check whether the tables are consistent, and repair what can be repaired with --repair.

    Examples:
        verify
        verify --only graphs watermarks --format json
        verify --repair --dry-run
        verify --repair --yes
    """
    problem = inspect.load_tasks()
    if problem is not None:
        out.note(f"The modules of tasks cannot be imported: {problem}")
    checks, bar = runner.chosen(options["only"]), _Bar(out.stderr)
    try:
        answers = runner.verify(checks, limit=options["limit"], progress=bar)
    finally:
        bar.clear()
    repairing = options["repair"] and not options["dry_run"]
    number = sum(bool(one.repair) for answer in answers for one in answer.findings)
    if repairing and number and not options["yes"]:
        refuse(
            f"Findings that would be repaired: {number}. See them with --repair --dry-run, do it"
            " with --yes."
        )
    repairs = perform(runner.repair, answers, options).value if repairing else []
    out.emit(
        _as_data(answers, repairs),
        _text(answers, repairs, would=options["repair"] and options["dry_run"]),
    )
    return _code(answers, repairs, repairing=repairing)


def _code(answers: Sequence[Answer], repairs: Sequence[RepairResult], *, repairing: bool) -> int:
    if any(answer.error for answer in answers):
        return REFUSED
    left = (
        any(outcome.left for outcome in repairs)
        if repairing
        else any(answer.findings for answer in answers)
    )
    return UNHEALTHY if left or any(answer.more for answer in answers) else OK


def _row(answer: Answer, repaired: Counter[str]) -> dict[str, Any]:
    check = answer.check
    return {
        "check": check.name,
        "group": check.group,
        "question": check.question,
        "looked_at": answer.looked_at,
        "findings": len(answer.findings),
        "more": answer.more,
        "repaired": repaired[check.name],
        "error": answer.error,
    }


def _as_data(answers: Sequence[Answer], repairs: Sequence[RepairResult]) -> dict[str, Any]:
    repaired = Counter(outcome.finding.check for outcome in repairs if outcome.done)
    became = {id(outcome.finding): outcome for outcome in repairs}
    return {
        "command": "verify",
        "checks": [_row(answer, repaired) for answer in answers],
        "findings": [
            _as_json(one, became.get(id(one))) for answer in answers for one in answer.findings
        ],
        "complete": not any(answer.error or answer.more for answer in answers),
    }


def _as_json(one: Finding, outcome: RepairResult | None) -> dict[str, Any]:
    facts = {
        name: getattr(one, name)
        for name in ("check", "severity", "table", "key", "field", "found", "right")
    }
    became = {"repaired": outcome.done, "left": outcome.left} if outcome else {}
    return {
        **facts,
        "right": hidden(one.right),
        "text": hidden(one.text),
        "repair": one.repair,
        "advice": one.advice,
        **became,
    }


def _text(answers: Sequence[Answer], repairs: Sequence[RepairResult], *, would: bool) -> str:
    report_data = _as_data(answers, repairs)
    lines = [
        table(
            _SHOWN,
            [
                {**row, "findings": f"{row['findings']}{'+' * row['more']}"}
                for row in report_data["checks"]
            ],
        )
    ]
    for row in report_data["findings"]:
        lines += ["", f"{row['severity']} {row['text']}", *_remarks(row, would)]
    lines += [
        "",
        *(
            f"{row['check']} could not run: {row['error']}"
            for row in report_data["checks"]
            if row["error"]
        ),
    ]
    return "\n".join([*lines, _summary(report_data)])


def _remarks(row: dict[str, Any], would: bool) -> list[str]:
    if row.get("repaired"):
        return [f"  repaired: {row['repaired']}"]
    if row.get("left"):
        return [f"  left: {row['left']}"]
    if row["repair"]:
        return [f"  {'would repair' if would else '--repair'}: {row['repair']}"]
    return [f"  {row['advice']}"] if row["advice"] else []


def _summary(report_data: dict[str, Any]) -> str:
    repaired = sum(1 for row in report_data["findings"] if row.get("repaired"))
    number = (
        f"{len(report_data['findings'])} finding{'' if len(report_data['findings']) == 1 else 's'}"
    )
    more = "" if report_data["complete"] else "; some checks could not run at everything"
    return f"{number}{f', {repaired} repaired' if repaired else ''}{more}"
