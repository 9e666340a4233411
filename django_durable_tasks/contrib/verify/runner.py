"""Runs the checks of ``durable verify``, reading each table once, and repairs what they found.

Called by the command and by the task ``django_durable_tasks.verify``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import Error, IntegrityError
from django.db.models import Model
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.audit import record_start
from django_durable_tasks.contrib.verify import (  # noqa: F401 - they register the checks
    installation,
    schedules,
    tasks,
    workflows,
)
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


def verify(
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
        if (finding.key, finding.field) not in still_wrong:
            result = (
                RepairResult(
                    finding, left="The row is locked by another transaction. Run the check again."
                )
                if finding.key in locked_by_others
                else RepairResult(finding, done="it is correct meanwhile")
            )
        elif finding.key in repaired:
            result = RepairResult(finding, done=check.done)
        else:
            result = RepairResult(
                finding,
                left="It cannot be repaired yet: repair the other findings of the row first, or"
                " correct it manually.",
            )
        results.append(result)
    return results


# The task for a schedule of the project. It repairs nothing.


class VerificationIncomplete(DurableTasksError):
    """Some of the tables could not be read, so their state is unknown."""


@durable_task(name=VERIFY_TASK, bind=True, max_attempts=3)
def audit(self: Any) -> dict[str, Any]:
    """Run all checks. Log the findings as errors and return their numbers. Raises
    VerificationIncomplete.
    """
    answers = verify(
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
