"""Time zones by name, always from the ``tzdata`` package, so that all nodes with the same package
compute the same fire times.

The system's time zone database is never used: it may be years older, and then some zones are an
hour off.
"""

from __future__ import annotations

from datetime import UTC
from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo

from django_durable_tasks.did_you_mean import nearest
from django_durable_tasks.exceptions import InvalidSchedule

_REFUSED = {
    "localtime": "it means a different zone on each machine",
    "Factory": "it is a placeholder for a time zone that is not configured",
}


@cache
def tzdata_version() -> str:
    """Return the release of the time zone database in use, for example 2026f."""
    with resources.files("tzdata.zoneinfo").joinpath("tzdata.zi").open(encoding="ascii") as table:
        return table.readline().rpartition(" ")[2].strip()


@cache
def zone_names() -> frozenset[str]:
    """Return all valid names of time zones."""
    names = resources.files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
    return frozenset(names) - _REFUSED.keys()


def zone_name(value: object) -> str:
    """Return the validated name of a zone given as text, ZoneInfo, pytz zone or datetime.UTC;
    raises InvalidSchedule.
    """
    if value is UTC:
        return "UTC"
    name = (
        value
        if isinstance(value, str)
        else getattr(value, "key", None) or getattr(value, "zone", None)
    )
    if not isinstance(name, str):
        raise InvalidSchedule(
            f"timezone={value!r}: give the name of a zone, for example 'Europe/Berlin'."
        )
    if name not in zone_names():
        raise InvalidSchedule(f"timezone={name[:60]!r}: {_objection(name[:60])}")
    return name


@cache
def zone(name: str) -> ZoneInfo:
    """Return the zone of this name from the tzdata package; raises InvalidSchedule with the closest
    names.
    """
    with (
        resources.files("tzdata.zoneinfo").joinpath(*zone_name(name).split("/")).open("rb") as table
    ):
        return ZoneInfo.from_file(table, key=name)


def _objection(name: str) -> str:
    if name in _REFUSED:
        return f"{_REFUSED[name]}; name the zone itself, for example 'Europe/Berlin' or 'UTC'."
    family, _, rest = name.partition("/")
    if family in {"right", "posix"}:
        return f"tables under {family}/ are not used here; write {rest!r}."
    folded = {known.casefold(): known for known in zone_names()}
    near = nearest(name.casefold(), folded)
    if near:
        return f"no such zone; did you mean {folded[near]}?"
    return "no such zone; write for example 'Europe/Berlin'."
