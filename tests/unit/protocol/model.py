"""Print the results of the checker.

``python -m tests.unit.protocol.model`` prints the tables of the documentation. With a part of a
name it prints the shortest way to the violation of each such case. With ``everything`` it explores
all faults at once, for about 30 seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import cache

from tests.unit.protocol.cases import CAUGHT, COVERED, EVERYTHING, PROTOCOL
from tests.unit.protocol.checker import Verdict, check
from tests.unit.protocol.states import Case


@cache
def verdict_of(case: Case) -> Verdict:
    """Check a case once."""
    return check(case)


def table(
    protocol: Iterable[Case] = PROTOCOL,
    caught: Iterable[Case] = CAUGHT,
    covered: Iterable[Case] = COVERED,
) -> str:
    """Return the results of these cases, by default of all, as three tables in Markdown."""
    return "\n".join([*_protocol(protocol), "", *_caught(caught), "", *_covered(covered)]) + "\n"


def _protocol(cases: Iterable[Case]) -> Iterator[str]:
    yield from ("| the protocol | states | violation |", "|---|---:|---|")
    for case in cases:
        verdict = verdict_of(case)
        yield f"| {case.name} | {verdict.states:,} | {verdict.violation or 'none'} |"


def _caught(cases: Iterable[Case]) -> Iterator[str]:
    yield from ("| removed | violation | after steps |", "|---|---|---:|")
    for case in cases:
        verdict = verdict_of(case)
        yield f"| {case.name} | {verdict.violation or 'none'} | {len(verdict.trace)} |"


def _covered(cases: Iterable[Case]) -> Iterator[str]:
    yield from ("| removed, without a violation | states | violation | why |", "|---|---:|---|---|")
    for case in cases:
        why, verdict = COVERED[case], verdict_of(case)
        yield f"| {case.name} | {verdict.states:,} | {verdict.violation or 'none'} | {why} |"


def _report(case: Case) -> str:
    verdict = verdict_of(case)
    lines = [f"{case.name}: {verdict.states:,} states, {verdict.violation or 'no violation'}"]
    return (
        "\n".join(
            [*lines, *(f"  {number}. {name}" for number, name in enumerate(verdict.trace, 1))]
        )
        + "\n"
    )


def main(words: list[str]) -> None:
    """Print the table, or the named cases."""
    if not words:
        sys.stdout.write(table())
    for word in words:
        cases = [case for case in (*PROTOCOL, *CAUGHT, *COVERED) if word in case.name]
        for case in [Case("everything", EVERYTHING)] if word == "everything" else cases:
            sys.stdout.write(_report(case))


if __name__ == "__main__":
    main(sys.argv[1:])
