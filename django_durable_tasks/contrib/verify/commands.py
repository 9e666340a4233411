"""``durable verify``: checks the consistency of the tables, and repairs findings that can be
repaired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from django_durable_tasks.celery import inspect
from django_durable_tasks.command.subcommand import (
    OK,
    REFUSED,
    UNHEALTHY,
    Options,
    Output,
    argument,
    count,
    hidden,
    perform,
    refuse,
    subcommand,
    table,
)
from django_durable_tasks.contrib.verify import runner
from django_durable_tasks.contrib.verify.check import GROUPS
from django_durable_tasks.contrib.verify.runner import CHECKS, MOST, Answer, RepairResult

_SHOWN = ("check", "looked_at", "findings", "repaired", "question")
_BAR = 30


class _Bar:
    """A progress bar in one line of a terminal. Writes nothing if the output is not a terminal."""

    def __init__(self, stream: Any) -> None:
        self._stream = getattr(stream, "_out", stream)
        self._watched = bool(getattr(self._stream, "isatty", lambda: False)())

    def __call__(self, name: str, share: float) -> None:
        if self._watched:
            done = round(_BAR * share)
            self._stream.write(f"\r\x1b[K[{'#' * done}{'.' * (_BAR - done)}] {share:4.0%} {name}")
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
    number = sum(bool(finding.repair) for answer in answers for finding in answer.findings)
    if repairing and number and not options["yes"]:
        refuse(
            f"Findings that would be repaired: {number}. See them with --repair --dry-run, do it"
            " with --yes."
        )
    repairs = perform(runner.repair, answers, options).value if repairing else []
    report = _report(answers, repairs)
    out.emit(report, _text(report, would=options["repair"] and options["dry_run"]))
    if any(answer.error for answer in answers):
        return REFUSED
    unrepaired = any(result.left for result in repairs) if repairing else bool(report["findings"])
    return UNHEALTHY if unrepaired or any(answer.more for answer in answers) else OK


def _report(answers: Sequence[Answer], repairs: Sequence[RepairResult]) -> dict[str, Any]:
    repaired = Counter(result.finding.check for result in repairs if result.done)
    result_of = {id(result.finding): result for result in repairs}
    findings = []
    for finding in (finding for answer in answers for finding in answer.findings):
        columns = ("check", "severity", "table", "key", "field", "found")
        row = {name: getattr(finding, name) for name in columns}
        row |= {"right": hidden(finding.right), "text": hidden(finding.text)}
        row |= {"repair": finding.repair, "advice": finding.advice}
        if (result := result_of.get(id(finding))) is not None:
            row |= {"repaired": result.done, "left": result.left}
        findings.append(row)
    checks = [
        {
            "check": answer.check.name,
            "group": answer.check.group,
            "question": answer.check.question,
            "looked_at": answer.looked_at,
            "findings": len(answer.findings),
            "more": answer.more,
            "repaired": repaired[answer.check.name],
            "error": answer.error,
        }
        for answer in answers
    ]
    complete = not any(answer.error or answer.more for answer in answers)
    return {"command": "verify", "checks": checks, "findings": findings, "complete": complete}


def _text(report: dict[str, Any], *, would: bool) -> str:
    rows = [
        {**row, "findings": f"{row['findings']}{'+' * row['more']}"} for row in report["checks"]
    ]
    lines = [table(_SHOWN, rows)]
    for row in report["findings"]:
        lines += ["", f"{row['severity']} {row['text']}"]
        if row.get("repaired"):
            lines.append(f"  repaired: {row['repaired']}")
        elif row.get("left"):
            lines.append(f"  left: {row['left']}")
        elif row["repair"]:
            lines.append(f"  {'would repair' if would else '--repair'}: {row['repair']}")
        elif row["advice"]:
            lines.append(f"  {row['advice']}")
    lines.append("")
    for row in report["checks"]:
        if row["error"]:
            lines.append(f"{row['check']} could not run: {row['error']}")
    number = len(report["findings"])
    summary = f"{number} finding{'' if number == 1 else 's'}"
    repaired = sum(1 for row in report["findings"] if row.get("repaired"))
    if repaired:
        summary += f", {repaired} repaired"
    if not report["complete"]:
        summary += "; some checks could not run at everything"
    return "\n".join([*lines, summary])
