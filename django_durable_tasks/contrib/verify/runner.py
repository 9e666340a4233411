"""Runs the checks of ``durable verify``, reading each table once, and repairs what they found: the
subcommand, and the task ``django_durable_tasks.verify``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import Error, IntegrityError
from django.db.models import Model
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.audit import record_start
from django_durable_tasks.celery import inspect
from django_durable_tasks.command import subcommand as cli
from django_durable_tasks.contrib.verify import installation, schedules, tasks, workflows  # noqa: F401 - they register the checks
from django_durable_tasks.contrib.verify.check import (
    GROUPS,
    Check,
    Finding,
    Page,
    all_checks,
    batches,
    distinct,
    pages,
    read_context,
    rows_of,
)
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.exceptions import DurableTasksError, InvalidOption
from django_durable_tasks.operations import OF_ALL_TENANTS, Target, operation
from django_durable_tasks.store import tables
from django_durable_tasks.texts import counted, did_you_mean

logger = logging.getLogger("django_durable_tasks.verify")

CHECKS: dict[str, Check] = {check.name: check for check in all_checks()}
"""All checks by name."""
VERIFY_TASK = "django_durable_tasks.verify"
"""The name of the task, which a schedule of the project gives."""
# Findings that the task logs one by one.
_LOGGED = 20
MOST = 1_000
"""The default number of findings per check; a check stops when it reaches it."""
Progress = Callable[[str, float], object]
"""Called after each page with the name of the table and the part read so far (0 to 1)."""


@dataclass(slots=True)
class Answer:
    """The result of one check: the number of rows read, the findings, and the error if it could not
    read.

    ``more`` is set if it stopped at the limit.
    """

    check: Check
    looked_at: int = 0
    findings: list[Finding] = field(default_factory=list)
    more: bool = False
    error: str = ""

    @property
    def continues(self) -> bool:
        """Whether the check reads the next page."""
        return not self.more and not self.error


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The result of a repair: ``done`` describes the action, ``left`` why there was none."""

    finding: Finding
    done: str = ""
    left: str = ""


def chosen(names: Iterable[str] = ()) -> list[Check]:
    """Return the checks of these names or groups, or all checks if none is given.

    Raises InvalidOption, with a suggestion, for an unknown name.
    """
    checks: dict[str, Check] = {}
    for name in names:
        matching = {key: check for key, check in CHECKS.items() if name in (key, check.group)}
        if not matching:
            hint = did_you_mean(name, [*CHECKS, *GROUPS], cutoff=0.4)
            raise InvalidOption(f"There is no check {name!r}. {hint}".strip())
        checks |= matching
    return list((checks or CHECKS).values())


def run(
    checks: Sequence[Check] | None = None, *, limit: int = MOST, progress: Progress | None = None
) -> list[Answer]:
    """Run these checks (None: all) and read each table once; writes nothing and waits for no lock.

    Each finding is confirmed with its rows locked. If a check cannot read, its ``error`` is set and
    the others continue.
    """
    selected = chosen() if checks is None else checks
    answers = {check.name: Answer(check) for check in selected}
    of_model: dict[type[Model], list[Answer]] = {}
    for answer in answers.values():
        of_model.setdefault(answer.check.model, []).append(answer)
    for model, of_this in of_model.items():
        try:
            for page in pages(model):
                for answer in of_this:
                    if answer.continues:
                        _look(answer, page, limit)
                if progress is not None:
                    progress(str(model._meta.verbose_name_plural), page.part)
                if not any(answer.continues for answer in of_this):
                    break
        except Error as error:
            for answer in of_this:
                answer.error = answer.error or _text_of(error)
    return list(answers.values())


def _look(answer: Answer, page: Page, limit: int) -> None:
    try:
        candidates = answer.check.find(read_context(), page.rows)
        # Request one more than the limit, to detect that findings were cut off.
        confirmed = answer.check.confirmed(candidates, limit + 1 - len(answer.findings))
    except Error as broken:
        answer.error = _text_of(broken)
        return
    answer.looked_at += page.number
    answer.findings += confirmed
    if len(answer.findings) > limit:
        answer.findings, answer.more = answer.findings[:limit], True


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


# Repair -------------------------------------------------------------------------------------------


@operation(
    Target.INSTALLATION,
    title=_("Repair findings of verify"),
    help=_("Repairs findings, each batch in a transaction that locks and checks its rows again."),
    permission="",
    dry_run=True,
    not_in_api=OF_ALL_TENANTS,
    not_in_admin="it reads whole tables",
    counted=lambda results: {"repaired": sum(bool(result.done) for result in results)},
)
def repair(answers: Sequence[Answer]) -> list[RepairResult]:
    """Repair what can be repaired, in batches; each transaction locks and checks its rows again.

    The audit entry is written before the first one. Rows that are correct meanwhile are not
    changed. Findings that need an operator, and refused repairs, are returned with the reason. A
    second call changes nothing more.
    """
    checks = sorted({answer.check.name for answer in answers})
    record_start("installation.repair", checks=checks)
    results: list[RepairResult] = []
    for answer in answers:
        check, findings = answer.check, answer.findings
        safe = [finding for finding in findings if finding.repair and check.repair is not None]
        results += [
            RepairResult(finding, left=finding.advice or "It needs an operator.")
            for finding in findings
            if finding not in safe
        ]
        for keys in batches(distinct(safe)):
            results += _repair_batch(
                check, [finding for finding in safe if finding.key in set(keys)]
            )
    for result in results:
        logger.warning(
            "%s %s",
            result.finding.text,
            f"Repaired: {result.done}." if result.done else f"Left: {result.left}",
        )
    return results


def _repair_batch(check: Check, findings: Sequence[Finding]) -> list[RepairResult]:
    """Repair a batch; if it is refused, repair row by row, so that one row does not stop the
    others.
    """
    try:
        with tables.atomic():
            return _repair_locked(check, findings)
    except (DurableTasksError, IntegrityError) as refused:
        keys = distinct(findings)
        if len(keys) == 1:
            return [
                RepairResult(finding, left=f"The repair was refused: {refused}")
                for finding in findings
            ]
    return [
        result
        for key in keys
        for result in _repair_batch(check, [finding for finding in findings if finding.key == key])
    ]


def _repair_locked(check: Check, findings: Sequence[Finding]) -> list[RepairResult]:
    context, keys = read_context(), distinct(findings)
    rows = check.lock_rows(keys)
    remaining = [finding for finding in check.find(context, rows) if finding.repair]
    repaired: Collection[Any] = ()
    if remaining and check.repair is not None:
        to_repair = distinct(remaining)
        corrected = check.repair(context, to_repair)
        repaired = to_repair if corrected is None else corrected
    present = rows_of(check.model).filter(pk__in=keys)
    locked = set(rows.values_list("pk", flat=True))
    locked_by_others = set(present.values_list("pk", flat=True)) - locked
    still_wrong = {(finding.key, finding.field) for finding in remaining}
    results = []
    for finding in findings:
        done = left = ""
        if (finding.key, finding.field) not in still_wrong:
            if finding.key in locked_by_others:
                left = "The row is locked by another transaction. Run the check again."
            else:
                done = "it is correct meanwhile"
        elif finding.key in repaired:
            done = check.done
        else:
            left = (
                "It cannot be repaired yet: repair the other findings of the row first, or correct"
                " it manually."
            )
        results.append(RepairResult(finding, done, left))
    return results


# The subcommand.


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


@cli.subcommand(
    cli.argument(
        "--only",
        metavar="CHECK",
        nargs="+",
        default=[],
        help=(
            f"Run these checks or groups. Checks: {', '.join(CHECKS)}. Groups: {', '.join(GROUPS)}."
        ),
    ),
    cli.argument("--repair", action="store_true", help="Repair the findings that can be repaired."),
    cli.argument(
        "--limit",
        metavar="N",
        type=cli.count,
        default=MOST,
        help=f"The maximum number of findings of each check. Default: {MOST:,}.",
    ),
    operations=(repair,),
)
def verify(options: cli.Options, out: cli.Output) -> int:
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
    checks, bar = chosen(options["only"]), _Bar(out.stderr)
    try:
        answers = run(checks, limit=options["limit"], progress=bar)
    finally:
        bar.clear()
    repairing = options["repair"] and not options["dry_run"]
    number = sum(bool(finding.repair) for answer in answers for finding in answer.findings)
    if repairing and number and not options["yes"]:
        cli.refuse(
            f"Findings that would be repaired: {number}. See them with --repair --dry-run, do it"
            " with --yes."
        )
    repairs = cli.perform(repair, answers, options).value if repairing else []
    report = _report(answers, repairs)
    out.emit(report, _text(report, would=options["repair"] and options["dry_run"]))
    if any(answer.error for answer in answers):
        return cli.REFUSED
    unrepaired = any(result.left for result in repairs) if repairing else bool(report["findings"])
    return cli.UNHEALTHY if unrepaired or any(answer.more for answer in answers) else cli.OK


def _report(answers: Sequence[Answer], repairs: Sequence[RepairResult]) -> dict[str, Any]:
    repaired = Counter(result.finding.check for result in repairs if result.done)
    result_of = {id(result.finding): result for result in repairs}
    findings = []
    for finding in (finding for answer in answers for finding in answer.findings):
        columns = ("check", "severity", "table", "key", "field", "found")
        row = {name: getattr(finding, name) for name in columns}
        row |= {"right": cli.hidden(finding.right), "text": cli.hidden(finding.text)}
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
    lines = [cli.table(_SHOWN, rows)]
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


# The task for a schedule of the project. It repairs nothing.


class VerificationIncomplete(DurableTasksError):
    """Some of the tables could not be read, so their state is unknown."""


@durable_task(name=VERIFY_TASK, bind=True, max_attempts=3)
def audit(self: Any) -> dict[str, Any]:
    """Run all checks. Log the findings as errors and return their numbers. Raises
    VerificationIncomplete.
    """
    answers = run(
        progress=lambda table, share: self.durable.progress(round(100 * share), 100, table)
    )
    wrong = {answer.check.name: len(answer.findings) for answer in answers if answer.findings}
    for finding in [finding for answer in answers for finding in answer.findings][:_LOGGED]:
        logger.error("%s (%s): %s", finding.check, finding.severity, finding.text)
    if wrong:
        logger.error(
            "%s in total. Run `manage.py durable verify` for the list.",
            counted(sum(wrong.values()), "finding"),
        )
    unread = {answer.check.name: answer.error for answer in answers if answer.error}
    if unread:
        raise VerificationIncomplete(
            "; ".join(f"{name}: {error}" for name, error in unread.items())
        )
    return {"checks": len(answers), "findings": sum(wrong.values()), "by_check": wrong}
