"""Recurrence rules give the results of dateutil, and end where dateutil would search indefinitely."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import islice, pairwise, takewhile
from types import FrameType

import pytest
from dateutil.rrule import rrulestr
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.builder import checked, timetable
from django_durable_tasks.schedules.timetables.types import Direction, Timetable, walk
from tests.repetitions import repetitions

_EVERY_SECOND = ";".join(
    f"{key}={','.join(map(str, range(most)))}"
    for key, most in (("BYHOUR", 24), ("BYMINUTE", 60), ("BYSECOND", 60))
)
# Calls of functions to build a timetable and to search it in both directions, about half a second
# of work: a weekly rule without a match looks at the 20,871 weeks of 400 years twice. The largest
# rules without a bound needed several tens of millions.
MOST_CALLS = 3_000_000
START = datetime(2024, 1, 31, 9, 30, 15, tzinfo=UTC)
HORIZON = timedelta(days=3000)
DAILY_OR_LONGER = ["YEARLY", "MONTHLY", "WEEKLY", "DAILY"]
_WEEKDAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]


def _several(values: st.SearchStrategy[int], most: int = 3) -> st.SearchStrategy[str]:
    return st.lists(values, min_size=1, max_size=most, unique=True).map(
        lambda found: ",".join(map(str, found))
    )


def _from_both_ends(most: int) -> st.SearchStrategy[int]:
    return st.integers(1, most) | st.integers(-most, -1)


_PLAIN_DAYS = st.lists(st.sampled_from(_WEEKDAYS), min_size=1, max_size=4, unique=True).map(
    ",".join
)
_NTH_DAYS = st.lists(
    st.builds("{}{}".format, _from_both_ends(5), st.sampled_from(_WEEKDAYS)),
    min_size=1,
    max_size=3,
    unique=True,
).map(",".join)
_TIMES = {
    "BYHOUR": _several(st.integers(0, 23)),
    "BYMINUTE": _several(st.integers(0, 59)),
    "BYSECOND": st.just("0,30"),
}


@st.composite
def _rules(draw: st.DrawFn) -> str:
    frequency = draw(st.sampled_from([*DAILY_OR_LONGER, "HOURLY", "MINUTELY", "SECONDLY"]))
    most = {"YEARLY": 3, "MONTHLY": 14, "WEEKLY": 9}.get(
        frequency, 50_000 if frequency == "SECONDLY" else 400
    )
    keys = {
        "INTERVAL": st.integers(1, most).map(str),
        "BYMONTH": _several(st.integers(1, 12)),
        **_TIMES,
    }
    keys["BYDAY"] = _PLAIN_DAYS | _NTH_DAYS if frequency in {"YEARLY", "MONTHLY"} else _PLAIN_DAYS
    keys["BYMONTHDAY"] = _several(_from_both_ends(31))
    if frequency == "YEARLY":
        keys["BYYEARDAY"] = _several(_from_both_ends(366))
        keys["BYWEEKNO"] = _several(
            st.integers(1, 51)
        )  # dateutil numbers the last weeks of some years one too high
        keys["WKST"] = st.sampled_from(_WEEKDAYS)
    if frequency == "WEEKLY":
        keys["WKST"] = st.sampled_from(_WEEKDAYS)
    chosen = draw(st.sets(st.sampled_from(sorted(keys)), max_size=4))
    days = {"BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYDAY"} & chosen
    assume(len(days) < 2)
    parts = [f"FREQ={frequency}", *(f"{key}={draw(keys[key])}" for key in sorted(chosen))]
    if frequency in {"YEARLY", "MONTHLY", "DAILY"} and len(chosen) > 1 and draw(st.booleans()):
        parts.append(f"BYSETPOS={draw(_several(_from_both_ends(4)))}")
    assume("BYWEEKNO" not in chosen or ";BYDAY=+" not in ";".join(parts))
    return ";".join(parts)


def _built(text: str, start: datetime = START, zone: str = "UTC") -> Timetable:
    return timetable(checked([{"rrule": text}], zone=zone, anchor=start), zone=zone, anchor=start)


def _fires(parts: Timetable, number: int) -> list[datetime]:
    found: list[datetime] = []
    last = START - timedelta(days=1)
    while len(found) < number and (fire := parts.next(last)) and fire.nominal < START + HORIZON:
        last = fire.nominal
        found.append(last)
    return found


def _second_opinion(text: str, number: int) -> list[datetime]:
    rule = rrulestr(text, dtstart=START.replace(tzinfo=None))
    moments = (moment.replace(tzinfo=UTC) for moment in rule)
    return list(islice(takewhile(lambda moment: moment < START + HORIZON, moments), number))


def _agree(text: str, number: int = 40) -> None:
    parts = _built(text)
    expected = _second_opinion(text, number)
    assert _fires(parts, number) == expected
    for before, after in pairwise(expected):
        fire = parts.previous(after)
        assert fire is not None
        assert fire.nominal == before
    if expected:
        assert parts.count(START - timedelta(days=1), expected[-1]).number == len(expected)


@settings(
    max_examples=repetitions(150),
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(_rules())
def test_a_rule_gives_the_results_of_dateutil(text: str) -> None:
    try:
        first = _built(text).next(START - timedelta(days=1))
    except InvalidSchedule as error:
        assume("can never fire" not in str(error))
        raise
    assume(first is not None and first.nominal < START + HORIZON / 2)
    _agree(text)


def _week(day: date, first_weekday: int) -> int:
    """Return the number of a week by its definition in RFC 5545: week 1 is the first with four days
    in the year.
    """

    def first_of(year: int) -> date:
        start = date(year, 1, 4)
        return start - timedelta(days=(start.weekday() - first_weekday) % 7)

    year = next(year for year in (day.year + 1, day.year, day.year - 1) if first_of(year) <= day)
    return (day - first_of(year)).days // 7 + 1


@pytest.mark.parametrize("wkst", _WEEKDAYS)
@pytest.mark.parametrize("number", [1, 52, 53])
def test_the_weeks_at_the_end_of_a_year_are_numbered_by_their_definition(
    wkst: str, number: int
) -> None:
    """2030-01-01 is in week 52 of 2029 if weeks begin on Thursdays; dateutil says 53."""
    rule = f"FREQ=YEARLY;BYWEEKNO={number};WKST={wkst};BYHOUR=9;BYMINUTE=30;BYSECOND=15"
    days = (START.date() + timedelta(days=ahead) for ahead in range(HORIZON.days))
    wanted = [day for day in days if _week(day, _WEEKDAYS.index(wkst)) == number]
    assert [fire.date() for fire in _fires(_built(rule), 1_000)] == wanted


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=MONTHLY;BYDAY=-1FR",
        "FREQ=MONTHLY;BYMONTHDAY=31",
        "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
        "FREQ=YEARLY;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8;INTERVAL=4",
        "FREQ=YEARLY;BYWEEKNO=1,53;BYDAY=MO,SU",
        "FREQ=YEARLY;BYYEARDAY=-1,366",
        "FREQ=YEARLY;BYDAY=20MO,-3SU",
        "FREQ=WEEKLY;INTERVAL=2;BYDAY=TU,SU;WKST=SU",
        "FREQ=WEEKLY;INTERVAL=2;BYDAY=TU,SU;WKST=MO",
        "FREQ=DAILY;INTERVAL=10;COUNT=5",
        "FREQ=HOURLY;INTERVAL=3;UNTIL=20240203T000000",
        "FREQ=MINUTELY;INTERVAL=90;COUNT=30",
        "FREQ=SECONDLY;INTERVAL=4001",
        "FREQ=DAILY;BYHOUR=9,17;BYMINUTE=0,30;BYSETPOS=1,-1",
        "DTSTART:20250101T080000\nRRULE:FREQ=DAILY;COUNT=5\nRDATE:20250101T080000,20250110T060000\nEXDATE:20250103T080000",
        "RRULE:FREQ=DAILY\nEXRULE:FREQ=WEEKLY;BYDAY=SA,SU",
    ],
)
def test_rules_of_the_standard_give_the_results_of_dateutil(text: str) -> None:
    _agree(text, 60)


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
        "DTSTART:20240101T000000\nRRULE:FREQ=MINUTELY;INTERVAL=1440;BYHOUR=3",
        "RRULE:FREQ=DAILY;COUNT=9\nEXRULE:FREQ=DAILY",
        "FREQ=DAILY;UNTIL=20200101T000000",
    ],
)
def test_a_rule_that_never_fires_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchedule, match="can never fire"):
        checked([{"rrule": text}], anchor=START)
    parts = timetable(
        checked([{"rrule": text}], anchor=START, allow_never=True), zone="UTC", anchor=START
    )
    assert parts.next(START) is None
    assert parts.previous(START + HORIZON) is None
    assert parts.count(START, START + HORIZON).number == 0


def _work(rule: str) -> int:
    """Return the number of calls in the package that build a timetable and search it both ways."""
    calls = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    rrule_timetable = partial(timetable, zone="UTC", anchor=START)
    sys.setprofile(counted)
    try:
        built = rrule_timetable([{"rrule": rule}])
        built.next(START + HORIZON)
        built.previous(START + HORIZON)
    except InvalidSchedule:
        pass
    finally:
        sys.setprofile(None)
    return calls


@st.composite
def _expensive_rules(draw: st.DrawFn) -> str:
    """Draw rules with large sets, rare matches and distant ends."""
    frequency = draw(
        st.sampled_from([*DAILY_OR_LONGER, *DAILY_OR_LONGER, "HOURLY", "MINUTELY", "SECONDLY"])
    )
    keys = {
        "INTERVAL": st.sampled_from([2, 7, 24, 91, 168, 997, 86_401, 100_003, 999_999]).map(str),
        "COUNT": st.sampled_from(["9999", "10000"]),
        "BYMONTH": st.sampled_from(["2", "4", "1,2,3,4,5,6,7,8,9,10,11,12"]),
        "BYMONTHDAY": st.sampled_from(["31", "30", "-31", "1"]),
        "BYDAY": st.sampled_from(["MO", ",".join(_WEEKDAYS)]),
        **{
            key: st.sampled_from(["1", "0,7", ",".join(map(str, range(most)))])
            for key, most in (("BYHOUR", 24), ("BYMINUTE", 60), ("BYSECOND", 60))
        },
    }
    if frequency == "YEARLY":
        keys |= {"BYYEARDAY": st.sampled_from(["1", "300", "366"]), "BYWEEKNO": st.just("53")}
    if frequency in DAILY_OR_LONGER:
        keys["BYSETPOS"] = st.sampled_from(["1", "366", "-366", ",".join(map(str, range(1, 300)))])
    chosen = draw(st.sets(st.sampled_from(sorted(keys)), max_size=7))
    return ";".join([f"FREQ={frequency}", *(f"{key}={draw(keys[key])}" for key in sorted(chosen))])


@settings(max_examples=60, deadline=None)
@example("FREQ=MONTHLY;BYSETPOS=1;BYDAY=MO,TU,WE,TH,FR,SA,SU;" + _EVERY_SECOND)
@example("FREQ=YEARLY;BYSETPOS=366;BYDAY=MO,TU,WE,TH,FR,SA,SU;" + _EVERY_SECOND)
@example("FREQ=SECONDLY;INTERVAL=100003;BYHOUR=1;BYMINUTE=1;BYSECOND=1")
@example("FREQ=YEARLY;BYYEARDAY=300;BYMONTHDAY=1")
@example("FREQ=YEARLY;BYDAY=MO,TU,WE,TH,FR,SA,SU;BYSETPOS=1;COUNT=10000")
@example("FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR,SA,SU;BYSETPOS=366")
@example("FREQ=SECONDLY\nEXRULE:FREQ=SECONDLY")
@given(rule=_expensive_rules())
def test_one_fire_time_of_any_rule_costs_a_bounded_number_of_calls(rule: str) -> None:
    assert _work(rule) <= MOST_CALLS


_SELDOM = [
    "FREQ=YEARLY;BYWEEKNO=53;BYMONTH=5",
    "FREQ=WEEKLY;BYDAY=MO;BYSETPOS=2",
    "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=6",
    "FREQ=DAILY;BYYEARDAY=366;BYMONTH=1",
    "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO",
]


@given(
    seldom=st.lists(
        st.tuples(st.sampled_from(_SELDOM), st.integers(0, 23)),
        min_size=1,
        max_size=15,
        unique=True,
    ),
    often=st.sampled_from(["FREQ=MINUTELY", "FREQ=DAILY", "FREQ=SECONDLY;INTERVAL=7"]),
    excluded=st.booleans(),
    as_parts=st.booleans(),
    way=st.sampled_from(Direction),
)
@settings(max_examples=10, deadline=None)
def test_parts_that_seldom_fire_are_searched_once(
    seldom: list[tuple[str, int]], often: str, excluded: bool, as_parts: bool, way: Direction
) -> None:
    rules = [f"{rule};BYHOUR={hour}" for rule, hour in seldom]
    kind = "EXRULE" if excluded else "RRULE"
    lines = "\n".join([f"RRULE:{often}", *(f"{kind}:{rule}" for rule in rules)])
    parts = [{"rrule": rule} for rule in (often, *rules)] if as_parts else [{"rrule": lines}]
    times = timetable(parts, zone="UTC", anchor=START)
    calls = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(counted)
    try:
        walked = len(list(islice(walk(times, START + HORIZON, way=way), 300)))
    finally:
        sys.setprofile(None)
    assert walked == 300
    assert calls <= MOST_CALLS


def test_a_rule_that_excludes_all_its_fires_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="5000 consecutive times are excluded"):
        checked([{"rrule": "RRULE:FREQ=SECONDLY\nEXRULE:FREQ=SECONDLY"}], anchor=START)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "give a text"),
        ("FREQ=FORTNIGHTLY", "FREQ='FORTNIGHTLY'"),
        ("BYDAY=MO", "FREQ among them"),
        ("FREQ=DAILY;FREQ=DAILY", "each key once"),
        ("FREQ=DAILY;BYEASTER=0", "BYEASTER"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL='0'"),
        ("FREQ=DAILY;INTERVAL=-1", "INTERVAL='-1'"),
        ("FREQ=DAILY;COUNT=99999", "COUNT='99999'"),
        ("FREQ=DAILY;BYHOUR=24", "BYHOUR='24'"),
        ("FREQ=DAILY;BYMONTHDAY=0", "BYMONTHDAY='0'"),
        ("FREQ=DAILY;BYDAY=XX", "BYDAY='XX'"),
        ("FREQ=DAILY;BYDAY=2MO", "needs FREQ=MONTHLY or YEARLY"),
        ("FREQ=HOURLY;BYSETPOS=1", "BYSETPOS needs FREQ=DAILY"),
        ("FREQ=MONTHLY;BYWEEKNO=1", "BYWEEKNO needs FREQ=YEARLY"),
        ("FREQ=DAILY;COUNT=1;UNTIL=20300101T000000", "exclude each other"),
        ("FREQ=DAILY;UNTIL=20260230T000000", "there is no such time"),
        ("FREQ=DAILY;UNTIL=soon", "UNTIL='SOON'"),
        ("RDATE:20260101T000000,x", "write it as"),
        ("VEVENT:1", "a line begins with"),
        ("EXDATE:20260101T000000", "no line defines when"),
        ("DTSTART:20260101T000000Z\nFREQ=DAILY", "leave the Z out"),
        (
            "DTSTART;TZID=America/New_York:20260101T000000\nFREQ=DAILY",
            "does not fit timezone='Europe/Berlin'",
        ),
        ("FREQ=DAILY;BYHOUR=" + ",".join(["1"] * 5_000), "values are read"),
        ("x" * 25_000, "characters"),
    ],
)
def test_an_invalid_rule_is_refused_with_key_and_value(text: str, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        checked([{"rrule": text}], zone="Europe/Berlin", anchor=START)


def test_times_are_wall_times_of_the_zone_across_clock_changes() -> None:
    parts = _built("FREQ=WEEKLY;BYDAY=FR;BYHOUR=9;BYMINUTE=0;BYSECOND=0", zone="Europe/Berlin")
    assert [fire.hour for fire in _fires(parts, 10)] == [8] * 8 + [8, 7]


def test_a_start_in_the_text_is_used_and_its_zone_may_be_named() -> None:
    text = "DTSTART;TZID=Europe/Berlin:20260708T120000\nRRULE:FREQ=YEARLY;COUNT=1"
    assert _fires(_built(text, zone="Europe/Berlin"), 5) == [datetime(2026, 7, 8, 10, tzinfo=UTC)]


def test_an_end_in_utc_is_converted_to_the_wall_time_of_the_zone() -> None:
    text = "DTSTART:20260701T120000\nRRULE:FREQ=DAILY;UNTIL=20260703T100000Z"
    assert len(_fires(_built(text, zone="Europe/Berlin"), 9)) == 3


def test_days_of_every_kind_may_be_combined_in_byday() -> None:
    parts = _built("FREQ=MONTHLY;BYDAY=MO,2TU;BYMONTH=9;BYHOUR=0")
    assert [fire.day for fire in _fires(parts, 6)] == [2, 9, 10, 16, 23, 30]
