"""The evaluation of benchmark measurements: order of runs, medians, ratios, and uniform output
lines.
"""

import json
from collections.abc import Callable, Iterator

import pytest

from benchmarks.__main__ import main
from benchmarks.accounting import Process, spent, table
from benchmarks.arrivals import Arrivals
from benchmarks.contest import OURS, Contender, Measured, hold
from benchmarks.processes import Failed
from benchmarks.programme import PROGRAMMES
from benchmarks.report import as_json, as_table
from benchmarks.servers import Servers
from benchmarks.stage import Stage

MACHINE: dict[str, str | int] = {"cpu": "any", "cores": 2}
SERVERS = Servers("postgresql://x/y", "redis://x/14", "amqp://x//", "abc")


def a_contender(
    peer: str,
    measure: Callable[[], float],
    *,
    broker: str | None = "redis",
    what: str = "single",
    rival: str = "",
) -> Contender:
    return Contender("enqueue", what, peer, "postgresql", broker, 100, measure, rival)


def taking(*seconds: float) -> Callable[[], float]:
    turns: Iterator[float] = iter(seconds)
    return lambda: next(turns)


def test_contenders_alternate_and_their_medians_count() -> None:
    order: list[str] = []

    def turn(name: str, measure: Callable[[], float]) -> Callable[[], float]:
        def measured() -> float:
            order.append(name)
            return measure()

        return measured

    ours = a_contender(OURS, turn("ours", taking(1.0, 9.0, 2.0)))
    peer = a_contender("celery", turn("celery", taking(4.0, 4.0, 4.0)))
    first, second = hold([ours, peer], 3)
    assert order == ["ours", "celery"] * 3
    assert (first.seconds, first.per_second, first.ratio_to_ours, first.rounds) == (
        2.0,
        50.0,
        1.0,
        [100.0, 11.1, 50.0],
    )
    assert second.ratio_to_ours == 0.5


def test_a_peer_is_compared_on_its_own_broker_and_one_without_a_broker_with_our_slower() -> None:
    figures = hold(
        [
            a_contender(OURS, taking(1.0), broker="redis"),
            a_contender(OURS, taking(2.0), broker="rabbitmq"),
            a_contender("celery", taking(1.0), broker="rabbitmq"),
            a_contender("procrastinate", taking(1.0), broker=None),
            a_contender("django-ox", taking(1.0), broker=None, what="other", rival="single"),
            a_contender("oban", taking(1.0), broker=None, what="unheard of"),
        ],
        1,
    )
    assert [figure.ratio_to_ours for figure in figures] == [1.0, 1.0, 2.0, 2.0, 2.0, None]


def test_a_contender_that_fails_a_round_is_reported_and_the_others_continue(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> float:
        raise Failed("no such thing")

    turns = iter([fail, taking(4.0)])

    def fail_first() -> float:
        return next(turns)()

    contenders = [
        a_contender("celery", fail),
        a_contender("celery", fail_first, what="late", rival="single"),
        a_contender(OURS, taking(1.0, 2.0)),
    ]
    late, ours = hold(contenders, 2)
    assert (late.rounds, late.ratio_to_ours) == ([25.0], 0.5)
    assert ours.rounds == [100.0, 50.0]
    assert capsys.readouterr().err.count("no such thing") == 3


def test_each_line_of_json_is_an_object_with_the_documented_keys() -> None:
    lines = as_json(
        hold([a_contender(OURS, taking(1.0)), a_contender("celery", taking(1.0))], 1), MACHINE
    ).splitlines()
    promised = [
        "benchmark",
        "what",
        "peer",
        "database",
        "broker",
        "n",
        "seconds",
        "per_second",
        "ratio_to_ours",
    ]
    assert [list(json.loads(line)) for line in lines] == [[*promised, "rounds", "machine"]] * 2


def test_additional_values_of_a_measurement_are_in_its_line_as_medians() -> None:
    rounds = iter([Measured(1.0, {"lag_p99_ms": lag}) for lag in (90.0, 20.0, 40.0)])
    ours = Contender("recurring", "rows", OURS, "postgresql", "redis", 100, lambda: next(rounds))
    figures = hold([ours], 3)
    assert json.loads(as_json(figures, MACHINE))["lag_p99_ms"] == 40.0
    assert "lag p99 ms 40" in as_table(figures, MACHINE)


def test_a_message_has_arrived_at_the_poll_that_first_saw_it() -> None:
    arrivals = Arrivals([10.0, 10.5, 11.0, 11.5], [1, 1, 3, 4])
    assert [arrivals.instant(position) for position in range(4)] == [10.0, 11.0, 11.0, 11.5]
    assert (arrivals.number, arrivals.seconds) == (3, 1.5)


def test_the_table_names_the_machine() -> None:
    text = as_table(hold([a_contender(OURS, taking(1.0))], 1), MACHINE)
    assert "cpu any, cores 2" in text
    assert OURS in text


@pytest.mark.parametrize("name", PROGRAMMES)
def test_every_peer_of_a_programme_has_a_counterpart(name: str) -> None:
    pythons = dict.fromkeys(
        ("celery", "procrastinate", "django-ox", "oban", "django-celery-beat"), "python"
    )
    contenders = PROGRAMMES[name](Stage(SERVERS, ("redis", "rabbitmq"), 10, pythons))
    for contender in contenders:
        contender.took.append(1.0)
        contender.measure = taking(1.0)
    assert all(figure.ratio_to_ours is not None for figure in hold(contenders, 1))


@pytest.mark.parametrize(
    "arguments", [["walk"], ["run", "--peers", "nobody"], ["run", "--rounds", "0"]]
)
def test_a_wrong_argument_is_refused_before_anything_is_started(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2


def test_a_missing_server_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--postgresql", "postgresql://nobody@127.0.0.1:1/none"]) == 2
    assert capsys.readouterr().err.startswith("Cannot measure: A server does not answer")


def test_processor_time_is_recorded_by_role() -> None:
    before = {1: Process("python", 0, 5.0), 3: Process("postgres", 0, 1.0)}
    after = {
        1: Process("python", 0, 6.0),
        2: Process("python", 1, 2.0),
        3: Process("postgres", 0, 1.5),
        4: Process("bash", 0, 0.25),
    }
    by_role = spent(before, after, {1: "worker"})
    assert by_role == {
        "worker": 1.0,
        "worker's children": 2.0,
        "postgresql": 0.5,
        "other processes of this machine": 0.25,
    }
    assert "2,000,000 us  worker's children" in table(by_role, 1, 4.0)


def test_start_lag_is_also_measured_with_two_schedulers_and_in_batches() -> None:
    contenders = PROGRAMMES["lag"](Stage(SERVERS, ("redis", "rabbitmq"), 10, {}))
    assert [contender.what for contender in contenders] == [
        "due at 100/s",
        "due at 100/s, two schedulers",
        "due at 300/s",
        "due at 500/s",
        "due at 1000/s",
        "due at 1000/s, batches of 100",
    ]
