"""How a fault is named and found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.stage import Stage

Strike = Callable[[Stage], None]
BOTH = ("redis", "rabbitmq")


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to hurt the stage; it leaves the stage healed."""

    number: int
    name: str
    strike: Strike
    lanes: tuple[str, ...]
    private: bool = False

    @property
    def what(self) -> str:
        """Say in a line what it does."""
        return " ".join((self.strike.__doc__ or "").partition("\n\n")[0].split()).rstrip(".")


FAULTS: dict[str, Fault] = {}


def fault(
    number: int, name: str, lanes: tuple[str, ...] = BOTH, *, private: bool = False
) -> Callable[[Strike], Strike]:
    """Enter a fault under its name."""

    def enter(strike: Strike) -> Strike:
        FAULTS[name] = Fault(number, name, strike, lanes, private)
        return strike

    return enter
