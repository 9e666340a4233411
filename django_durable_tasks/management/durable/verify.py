"""``durable verify``: whether the tables are as they should be, and the repair of what can be mended."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from typing import Any

from django_durable_tasks.celery import wiring
from django_durable_tasks.lifecycle import verifying
from django_durable_tasks.lifecycle.verifying import CHECKS, MOST, Answer, Deed, groups
from django_durable_tasks.management.durable.output import Output, clean, table
from django_durable_tasks.management.durable.questions import count
from django_durable_tasks.management.durable.verb import OK, REFUSED, UNHEALTHY, Options, Verb, refuse
from django_durable_tasks.rules.findings import Finding

_SHOWN = ("check", "looked_at", "findings", "repaired", "question")
_BAR = 30


class _Bar:
    """How far the walk is, in one line of a terminal; nothing where nobody watches."""

    def __init__(self, stream: Any) -> None:
        self._stream = getattr(stream, "_out", stream)
        self._watched = bool(getattr(self._stream, "isatty", lambda: False)())

    def __call__(self, name: str, part: float) -> None:
        if self._watched:
            done = round(_BAR * part)
            self._stream.write(f"\r\x1b[K[{'#' * done}{'.' * (_BAR - done)}] {part:4.0%} {name}")
            self._stream.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._watched:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def run(options: Options, out: Output) -> int:
    """Look, repair if asked, and tell."""
    problem = wiring.load_tasks()
    if problem is not None:
        out.note(f"The modules of tasks cannot be imported: {problem}")
    checks, bar = verifying.chosen(options["only"]), _Bar(out.stderr)
    try:
        answers = verifying.verify(checks, limit=options["limit"], progress=bar)
    finally:
        bar.clear()
    mends = options["repair"] and not options["dry_run"]
    number = sum(bool(one.repair) for answer in answers for one in answer.findings)
    if mends and number and not options["yes"]:
        refuse(f"Findings that would be repaired: {number}. See them with --repair --dry-run, do it with --yes.")
    deeds = verifying.repair(answers) if mends else []
    out.emit(_told(answers, deeds), _text(answers, deeds, would=options["repair"] and options["dry_run"]))
    return _code(answers, deeds, mends=mends)


def _code(answers: Sequence[Answer], deeds: Sequence[Deed], *, mends: bool) -> int:
    if any(answer.error for answer in answers):
        return REFUSED
    left = any(deed.left for deed in deeds) if mends else any(answer.findings for answer in answers)
    return UNHEALTHY if left or any(answer.more for answer in answers) else OK


def _row(answer: Answer, repaired: Counter[str]) -> dict[str, Any]:
    check = answer.check
    return {
        "check": check.name, "group": check.group, "question": check.question, "looked_at": answer.looked_at,
        "findings": len(answer.findings), "more": answer.more, "repaired": repaired[check.name], "error": answer.error,
        "note": answer.note,
    }  # fmt: skip


def _told(answers: Sequence[Answer], deeds: Sequence[Deed]) -> dict[str, Any]:
    repaired = Counter(deed.finding.check for deed in deeds if deed.done)
    became = {id(deed.finding): deed for deed in deeds}
    return {
        "verb": "verify",
        "checks": [_row(answer, repaired) for answer in answers],
        "findings": [_as_json(one, became.get(id(one))) for answer in answers for one in answer.findings],
        "complete": not any(answer.error or answer.more for answer in answers),
    }


def _as_json(one: Finding, deed: Deed | None) -> dict[str, Any]:
    told = {name: getattr(one, name) for name in ("check", "severity", "table", "key", "field", "found", "right")}
    became = {"repaired": deed.done, "left": deed.left} if deed else {}
    return {**told, "right": clean(one.right), "text": clean(one.text), "repair": one.repair, "advice": one.advice,
            **became}  # fmt: skip


def _text(answers: Sequence[Answer], deeds: Sequence[Deed], *, would: bool) -> str:
    told = _told(answers, deeds)
    lines = [table(_SHOWN, [{**row, "findings": f"{row['findings']}{'+' * row['more']}"} for row in told["checks"]])]
    for row in told["findings"]:
        lines += ["", f"{row['severity']} {row['text']}", *_remarks(row, would)]
    lines += ["", *(f"{row['check']} could not look: {row['error']}" for row in told["checks"] if row["error"])]
    lines += (f"{row['check']}: {row['note']}" for row in told["checks"] if row["note"])
    return "\n".join([*lines, _summary(told)])


def _remarks(row: dict[str, Any], would: bool) -> list[str]:
    if row.get("repaired"):
        return [f"  repaired: {row['repaired']}"]
    if row.get("left"):
        return [f"  left: {row['left']}"]
    if row["repair"]:
        return [f"  {'would repair' if would else '--repair'}: {row['repair']}"]
    return [f"  {row['advice']}"] if row["advice"] else []


def _summary(told: dict[str, Any]) -> str:
    repaired = sum(1 for row in told["findings"] if row.get("repaired"))
    number = f"{len(told['findings'])} finding{'' if len(told['findings']) == 1 else 's'}"
    more = "" if told["complete"] else "; some checks could not look at everything"
    return f"{number}{f', {repaired} repaired' if repaired else ''}{more}"


def _arguments(parser: ArgumentParser) -> None:
    known = f"checks: {', '.join(CHECKS)}; groups: {', '.join(groups())}"
    parser.add_argument("--only", metavar="CHECK", nargs="+", default=[], help=f"these checks or groups ({known})")
    parser.add_argument("--repair", action="store_true", help="mend what can be mended; the rest is left to people")
    parser.add_argument("--dry-run", action="store_true", help="with --repair: show what would be mended, mend nothing")
    parser.add_argument("--yes", action="store_true", help="with --repair: do it")
    parser.add_argument(
        "--limit", metavar="N", type=count, default=MOST, help=f"so many findings of a check at most (default {MOST:,})"
    )


VERIFY = Verb(
    name="verify",
    help="look whether the tables are as they should be: counts, dead letters, leases, ledger, orphans; repair them",
    examples=("verify", "verify --only graphs watermarks --format json", "verify --repair --dry-run",
              "verify --repair --yes"),
    arguments=_arguments,
    run=run,
)  # fmt: skip
