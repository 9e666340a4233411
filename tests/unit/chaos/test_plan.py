"""The command runs each broker that can run, and refuses others."""

from typing import Any

import pytest

from tests.chaos import __main__ as command
from tests.chaos.plan import QUEUES, Plan, further_queues
from tests.chaos.report import rendered
from tests.unit.chaos.test_figures import _result


def test_a_broker_that_is_not_known_is_refused() -> None:
    with pytest.raises(
        SystemExit, match=r"--broker takes redis, rabbitmq, database, redis\+pgbouncer"
    ):
        command._can_run("kafka")


def test_the_run_through_pgbouncer_is_left_out_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_pgbouncer", lambda: None)
    assert [broker for broker in command.SHARES if command._can_run(broker)] == [
        "redis",
        "rabbitmq",
        "database",
    ]
    assert "SKIPPED: PgBouncer is not installed." in capsys.readouterr().err


def test_the_load_uses_different_queues() -> None:
    for broker, number in QUEUES.items():
        assert len(set(further_queues("default", broker))) == number


def test_a_report_names_pgbouncer_and_leaves_out_what_was_not_counted() -> None:
    facts = dict.fromkeys(("taken", "machine", "versions"), "")
    old = _result()
    del old["queues"]
    text = rendered({"seed": "s", "seconds": 1.0, "results": [old], "facts": facts})
    assert "queues in which tasks succeeded" not in text
    both = [old, _result(pooled=True, queues=200)]
    text = rendered({"seed": "s", "seconds": 1.0, "results": both, "facts": facts})
    assert "| queues in which tasks succeeded |  | 200 |  |" in text
    assert "PostgreSQL × Redis, PgBouncer" in text


def test_a_report_names_the_database_and_the_configuration_of_a_campaign() -> None:
    facts = dict.fromkeys(("taken", "machine", "versions"), "")
    drawn = _result(broker="filesystem", database="sqlite", configuration="pool=solo")
    text = rendered({"seed": "s", "seconds": 1.0, "results": [drawn], "facts": facts})
    assert "SQLite × files" in text
    assert "* `pool=solo`" in text


def test_a_run_that_breaks_off_fails_and_the_others_are_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(plan: Plan) -> dict[str, Any]:
        if plan.seed == "7-1":
            raise command.BrokenOff("no worker was ready")
        return _result(seed=plan.seed)

    monkeypatch.setattr(command, "run_in_process", run)
    assert command.main(["--seed", "7", "--campaigns", "2"]) == 1
    shown = capsys.readouterr()
    assert "no worker was ready" in shown.err
    assert "| tasks | 9 |" in shown.out
