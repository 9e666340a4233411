"""How a fault is named and found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.stage import Stage

Strike = Callable[[Stage], None]
BOTH = ("redis", "rabbitmq")
BESIDE_FILES = (*BOTH, "database")
ANY_BROKER = (*BESIDE_FILES, "filesystem")
POSTGRESQL = ("postgresql",)
SERVERS = ("postgresql", "mariadb")
ANY_DATABASE = (*SERVERS, "sqlite")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. When it returns, everything is repaired."""

    number: int
    name: str
    strike: Strike
    brokers: tuple[str, ...]
    private: bool = False
    databases: tuple[str, ...] = POSTGRESQL
    pools: tuple[str, ...] = ()  # of a campaign's workers; empty: all
    campaign: bool = False  # it may be drawn for a campaign

    @property
    def what(self) -> str:
        """Return its description in one line."""
        return " ".join((self.strike.__doc__ or "").partition("\n\n")[0].split()).rstrip(".")


FAULTS: dict[str, Fault] = {}


def fault(
    number: int,
    name: str,
    brokers: tuple[str, ...] = BOTH,
    *,
    private: bool = False,
    databases: tuple[str, ...] = POSTGRESQL,
    pools: tuple[str, ...] = (),
    campaign: bool = False,
) -> Callable[[Strike], Strike]:
    """Register a fault under its name."""

    def enter(strike: Strike) -> Strike:
        FAULTS[name] = Fault(number, name, strike, brokers, private, databases, pools, campaign)
        return strike

    return enter
