"""What every subcommand of ``manage.py durable`` has: help, examples, exit codes, and a number of
statements that does not depend on the number of rows.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks import Workflow
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.command.subcommand import OPTIONAL_SUBCOMMANDS
from django_durable_tasks.management.commands.durable import SUBCOMMANDS, Command
from tests.architecture.sources import ROOT
from tests.database.commands.durable_command import durable, parsers
from tests.database.recurring.schedules import a_schedule
from tests.factories import QUEUE, a_node, many_tasks
from tests.process_state import new_process_state
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_has_help_with_examples_and_exit_codes(name: str) -> None:
    text = parsers()[name].format_help()
    assert "examples:" in text
    assert f"manage.py durable {name}" in text
    assert "exit codes:" in text
    assert "--format" in text


@pytest.mark.parametrize("words", [(), ("dance",), ("status", "--fast"), ("show",), ("pause",)])
def test_a_usage_error_exits_with_2(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "durable", *words])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "usage:" in printed.err


def test_without_a_subcommand_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Command().run_from_argv(["manage.py", "durable"])
    listed = capsys.readouterr().err
    assert all(f"  {name} " in listed for name in SUBCOMMANDS)


def test_invalid_settings_exit_with_2(settings: Any) -> None:
    settings.DURABLE_TASKS = {"LEESE": 60}
    answer = durable("status")
    assert answer.code == 2
    assert "Did you mean 'LEASE'" in answer.err


def test_a_database_that_does_not_answer_exits_with_1(tmp_path: Path, vendor: str) -> None:
    elsewhere = {**os.environ, "TEST_RUN": "missing", "TEST_FOLDER": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, "-m", "django", "durable", "status", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env=elsewhere,
    )
    assert answer.returncode == 1, answer
    assert answer.stdout == ""
    # SQLite creates an empty file if the database is missing.
    problem = (
        "run `manage.py migrate`"
        if vendor == "sqlite"
        else "The database refused or does not answer"
    )
    assert problem in answer.stderr
    assert "Traceback" not in answer.stderr


def test_every_example_of_every_subcommand_can_be_parsed() -> None:
    parser = Command().create_parser("manage.py", "durable")
    for subcommand in SUBCOMMANDS.values():
        for example in subcommand.examples:
            assert parser.parse_args(shlex.split(example)).subcommand == subcommand.name


MOST_STATEMENTS = {
    "list tasks": 1,
    "list workflows": 1,
    "list recurring": 1,
    "list dead-letters": 1,
    "list queues": 9,
    "list nodes": 1,
    "audit": 1,
    "status": 24,
}


def test_a_subcommand_needs_as_many_statements_for_many_rows(subtests: pytest.Subtests) -> None:
    def statements(number: int, queue: str) -> dict[str, int]:
        for status in (Status.PENDING, Status.QUEUED, Status.RUNNING, Status.FAILED):
            many_tasks(number, status, queue=queue, name=f"gone.{status}")
        for at in range(number):
            a_node(queues=[queue], concurrency=2)
            a_schedule(f"{queue} {at}")
            workflow = Workflow(f"{queue}-{at}")
            workflow.add(noop)
            workflow.start()
            queues.pause(f"{queue}-{at}", by="ada")
        return {words: _statements(words) for words in MOST_STATEMENTS}

    few, many = statements(1, QUEUE), statements(10, "other")
    for words, most in MOST_STATEMENTS.items():
        with subtests.test(words):
            assert many[words] == few[words] <= most


def _statements(words: str) -> int:
    new_process_state()
    with CaptureQueriesContext(connection) as captured:
        assert durable(*words.split(), "--format", "json").data
    return len(captured)


def test_a_command_of_an_app_that_is_not_installed_names_the_app(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{Command.__module__}.SUBCOMMANDS", {})
    for name, one in OPTIONAL_SUBCOMMANDS.items():
        written = StringIO()
        command = Command(stderr=written)
        with pytest.raises(SystemExit) as ended:
            command.run_from_argv(["manage.py", "durable", name, "--dry-run"])
        assert ended.value.code == 2
        app = one.run.__module__.rpartition(".")[0]
        assert f"{name} is a command of the app {app!r}" in written.getvalue()
