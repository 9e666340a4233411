"""Measures all contenders in each round, so that noise of the machine affects all of them, and
compares medians.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.processes import Failed

OURS = "django-durable-tasks"


@dataclass(frozen=True)
class Measured:
    """One measurement: how many seconds n took, and further figures."""

    seconds: float
    facts: dict[str, float] = field(default_factory=dict)


@dataclass
class Contender:
    """Something to measure. ``measure`` does it once and returns how many seconds ``n`` of it took,
    or a Measured.
    """

    benchmark: str
    what: str
    peer: str
    database: str | None
    broker: str | None
    n: int
    measure: Callable[[], float | Measured]
    rival: str = ""
    """The ``what`` of the contender of this package that it is compared with. Empty: its own
    ``what``.
    """
    took: list[float | None] = field(default_factory=list)
    """Seconds by round; None if the round failed."""
    facts_by_round: list[dict[str, float]] = field(default_factory=list)
    """The further figures of the rounds that succeeded."""

    @property
    def ended(self) -> list[float]:
        """Return the seconds of the rounds that succeeded."""
        return [seconds for seconds in self.took if seconds is not None]

    @property
    def rate(self) -> float:
        """Return the number per second, by the median of the rounds."""
        return self.n / statistics.median(self.ended)

    @property
    def title(self) -> str:
        """Return the name that is displayed."""
        places = " + ".join(place for place in (self.database, self.broker) if place)
        return f"{self.benchmark}: {self.peer}, {self.what} ({places})"


@dataclass(frozen=True)
class Figure:
    """One line of the result."""

    benchmark: str
    what: str
    peer: str
    database: str | None
    broker: str | None
    n: int
    seconds: float
    per_second: float
    ratio_to_ours: float | None
    rounds: list[float]
    facts: dict[str, float] = field(default_factory=dict)

    def as_object(self, machine: dict[str, str | int]) -> dict[str, Any]:
        """Return the figure as a JSON object, with the further figures as its items."""
        line = asdict(self)
        facts = line.pop("facts")
        return {**line, **facts, "machine": machine}


def hold(contenders: Sequence[Contender], rounds: int) -> list[Figure]:
    """Measure all contenders in each round; return a figure for each that completed at least one
    round.
    """
    for number in range(1, rounds + 1):
        for contender in contenders:
            try:
                found = contender.measure()
            except Failed as error:
                print(
                    f"round {number}/{rounds}  {contender.title}: FAILED: {error}", file=sys.stderr
                )
                contender.took.append(None)
                continue
            measured = found if isinstance(found, Measured) else Measured(found)
            contender.took.append(measured.seconds)
            contender.facts_by_round.append(measured.facts)
            rate, facts = (
                contender.n / measured.seconds,
                "".join(f", {fact}" for fact in in_words(measured.facts)),
            )
            print(
                f"round {number}/{rounds}  {contender.title}: {rate:,.0f}/s{facts}", file=sys.stderr
            )
    return [_figure(contender, contenders) for contender in contenders if contender.ended]


def _figure(contender: Contender, contenders: Sequence[Contender]) -> Figure:
    ours = [other for other in contenders if _is_rival(other, contender)]
    return Figure(
        contender.benchmark,
        contender.what,
        contender.peer,
        contender.database,
        contender.broker,
        contender.n,
        seconds=round(statistics.median(contender.ended), 4),
        per_second=round(contender.rate, 1),
        ratio_to_ours=_ratio(contender, min(ours, key=lambda other: other.rate)) if ours else None,
        rounds=[round(contender.n / seconds, 1) for seconds in contender.ended],
        facts={
            name: statistics.median(facts[name] for facts in contender.facts_by_round)
            for name in contender.facts_by_round[-1]
        },
    )


def in_words(facts: dict[str, float]) -> list[str]:
    """Return the figures as text."""
    return [f"{name.replace('_', ' ')} {value:,.0f}" for name, value in facts.items()]


def _ratio(contender: Contender, ours: Contender) -> float | None:
    """Return the median of the ratios of the rounds. Noise during a round affects both contenders."""
    pairs = zip(contender.took, ours.took, strict=True)
    ratios = [
        (contender.n / took) / (ours.n / took_by_ours)
        for took, took_by_ours in pairs
        if took and took_by_ours
    ]
    return round(statistics.median(ratios), 3) if ratios else None


def _is_rival(other: Contender, contender: Contender) -> bool:
    """Compare with this package on the same broker. A contender without a broker is compared with
    the slowest figure of this package.
    """
    if other.peer != OURS or not other.ended:
        return False
    same_broker = contender.broker is None or other.broker == contender.broker
    return same_broker and other.what == (contender.rival or contender.what)
