"""The command runs each broker that can run, and refuses others."""

import pytest

from tests.chaos import __main__ as command
from tests.chaos.plan import QUEUES, further_queues
from tests.chaos.report import rendered
from tests.unit.chaos.test_figures import _result


def test_a_broker_that_is_not_known_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"--broker takes redis, rabbitmq, redis\+pgbouncer"):
        command._can_run("kafka")


def test_the_run_through_pgbouncer_is_left_out_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_pgbouncer", lambda: None)
    assert [broker for broker in command.SHARES if command._can_run(broker)] == [
        "redis",
        "rabbitmq",
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
