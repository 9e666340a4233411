"""`make demo` and `make run` as a new user starts them: nothing is lost, duplicated or left behind."""

import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from tests.runs import ROOT
from tests.waiting import until

pytestmark = [pytest.mark.sqlite, pytest.mark.timeout(600)]
STARTING = 300
"""Six interpreters start one after the other on a possibly busy machine: `run` itself gives each of
them a minute.
"""
RUN = ("run", "--port", "0", "--customers-port", "0", "--folder")
MANAGE = ROOT / "example_project" / "manage.py"
ELSEWHERE = {"DATABASE_URL", "BROKER_URL", "QUEUE_PREFIX", "DURABLE_TASKS"}
ELSEWHERE |= {"BILLING_FOLDER", "BILLING_ENTERED", "BILLING_CADENCE", "CUSTOMERS_PORT"}


def _environment() -> dict[str, str]:
    """Return an environment in which the example uses SQLite and files, as on a new machine."""
    environment = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    return environment | {"DJANGO_SETTINGS_MODULE": "config.settings"}


@contextmanager
def _started(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command as the leader of a process group, as a terminal does. It always gets the time
    to clean up.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), *arguments],
            env=_environment(),
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(90)


def _said(log: Path) -> str:
    return log.read_text(errors="replace")


def _nodes(folder: Path, which: str = "1 = 1") -> list[int]:
    """Return the process groups of the schedulers and workers that ran in this folder."""
    with closing(sqlite3.connect(folder / "billing.sqlite3")) as connection:
        return [
            pid
            for (pid,) in connection.execute(f"SELECT pid FROM durable_tasks_node WHERE {which}")
        ]


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _started_run(folder: Path, log: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait until `run` has printed its welcome text, and return the site's address."""

    def greeted_or_dead() -> bool:
        return "Ctrl-C stops everything" in _said(log) or process.poll() is not None

    until(greeted_or_dead, within=STARTING, message="run greets")
    found = re.search(r"Site +(http://\S+)", _said(log))
    assert found, _said(log)
    return found.group(1)


@pytest.mark.smoke
def test_the_demo_loses_and_duplicates_nothing_while_a_worker_and_the_leader_are_killed(
    tmp_path: Path,
) -> None:
    log = tmp_path / "said.log"
    with _started(log, "demo", "--customers", "600", "--folder", str(tmp_path / "demo")) as process:
        code = process.wait(400)
    said = _said(log)
    assert code == 0, said
    figures = dict(re.findall(r"^  (\S.*?)  +(\S.*)$", said, re.MULTILINE))
    assert figures["lost"] == "0"
    assert figures["doubled"] == "0"
    assert figures["replayed"] == "2"  # one by the office, one by a customer
    assert figures["recurring jobs"] == "50"
    assert figures["recurring fires missing"] == "0"
    assert figures["recurring fires doubled"] == "0"
    assert figures["released early"] == "0"
    assert (
        int(figures["workflows succeeded"])
        == int(figures["workflows started"].partition(";")[0])
        >= 1
    )
    # extract, the revenue of each of three plans, total and summary. How many statements are added
    # depends on how many customers have paid when the month is closed.
    assert int(figures["nodes of workflows"]) >= 6
    wanted, leaderless = map(int, re.findall(r"\d+", figures["recurring fires expected"]))
    assert int(figures["recurring fires seen"].partition(":")[0]) == wanted > 200
    assert leaderless > 10
    assert int(figures["dead-lettered"]) >= 2
    assert int(figures["attempts started"]) >= int(figures["succeeded"]) > 300
    lost, rerun = map(int, re.findall(r"\d+", figures["runs lost with the killed worker"]))
    assert lost == rerun > 0
    assert re.search(r"SIGKILL: worker-\d", said)
    assert re.search(r"SIGKILL: scheduler-\d", said)
    assert said.count("429 quota_exceeded") == said.count("404 not_found (2 times)") == 3
    assert len(re.findall(r"1 message in customer\.\w+; (\d+) of \1 signatures valid", said)) == 3
    assert not [group for group in _nodes(tmp_path / "demo") if _exists(group)]


@pytest.fixture
def default_sighup() -> Iterator[None]:
    """Reset an ignored SIGHUP. These tests may themselves be run with nohup, which `run` would
    respect.
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_leaves_no_process_behind(
    tmp_path: Path, default_sighup: None, number: signal.Signals
) -> None:
    folder, log = tmp_path / "run", tmp_path / "said.log"
    with _started(log, *RUN, str(folder)) as process:
        address = urlsplit(_started_run(folder, log, process))
        groups = _nodes(folder)
        assert len([group for group in groups if _exists(group)]) == 4
        os.killpg(process.pid, number)
        assert process.wait(90) == 0, _said(log)
    assert not [group for group in groups if _exists(group)]
    site = http.client.HTTPConnection(address.hostname or "", address.port, timeout=3)
    with pytest.raises(ConnectionRefusedError):
        site.connect()


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux signals a process whose parent ended"
)
def test_processes_stop_when_run_itself_is_killed(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "said.log"
    with _started(log, *RUN, str(folder)) as process:
        _started_run(folder, log, process)
        process.kill()
    until(lambda: not _nodes(folder, "stopped_at IS NULL"), within=60, message="all say goodbye")


def test_a_second_ctrl_c_does_not_wait_for_running_tasks(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "said.log"
    with _started(log, *RUN, str(folder)) as process:
        _started_run(folder, log, process)
        groups = _nodes(folder)
        process.send_signal(signal.SIGINT)
        until(lambda: "A second Ctrl-C" in _said(log) or process.poll() is not None, within=60)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    until(lambda: not [group for group in groups if _exists(group)], within=30)


def test_the_printed_login_opens_the_admin(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "said.log"
    with _started(log, *RUN, str(folder)) as process:
        address = urlsplit(_started_run(folder, log, process))
        site = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
        site.request("GET", "/admin/login/")
        page = site.getresponse()
        token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', page.read().decode())
        cookie = str(page.getheader("Set-Cookie")).partition(";")[0]
        assert token
        assert "admin / admin" in _said(log)
        form = {
            "csrfmiddlewaretoken": token[1],
            "username": "admin",
            "password": "admin",
            "next": "/admin/",
        }
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
        site.request("POST", "/admin/login/", urlencode(form), kind)
        assert (answer := site.getresponse()).status == http.HTTPStatus.FOUND
        assert answer.getheader("Location") == "/admin/"
        site.close()


def test_a_preview_uses_no_database(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(MANAGE),
        "durable",
        "preview",
        "--cron",
        "30 2 * * *",
        "--timezone",
        "America/New_York",
        "--start",
        "2026-03-07T00:00:00Z",
        "--count",
        "2",
        "--format",
        "json",
    ]
    nowhere = _environment() | {
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "BILLING_FOLDER": str(tmp_path),
    }
    answer = subprocess.run(
        command, env=nowhere, capture_output=True, text=True, timeout=100, check=False
    )
    assert answer.returncode == 0, answer.stderr
    fires = json.loads(answer.stdout)
    assert [fire["nominal"] for fire in fires] == ["2026-03-07T07:30:00Z", "2026-03-08T07:00:00Z"]
    assert "DST gap" in fires[1]["remarks"][0]


def test_the_tests_of_the_example_pass() -> None:
    command = [sys.executable, str(MANAGE), "test", "billing"]
    answer = subprocess.run(
        command, env=_environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert answer.returncode == 0, answer.stderr


def test_the_migrations_of_the_example_match_its_models() -> None:
    command = [sys.executable, str(MANAGE), "makemigrations", "--check", "--dry-run", "billing"]
    answer = subprocess.run(
        command, env=_environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
