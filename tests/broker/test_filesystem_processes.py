"""The filesystem transport between processes, some of which are killed, and with a real Celery
worker.
"""

# mypy: disable-error-code="no-untyped-call"

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from celery import Celery
from kombu import Connection, Exchange, Producer

from django_durable_tasks.celery.filesystem import register
from tests.broker.filesystem_folder import RUBBISH, drained, noted, queue_folder, size, take_all
from tests.waiting import until

ROOT = Path(__file__).parents[2]
Process = subprocess.Popen[bytes]
Start = Callable[..., Process]

register()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "broker"


@pytest.fixture
def url(folder: Path) -> str:
    return f"durable-filesystem://{folder}"


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    return tmp_path / "notebook"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python module as a process without Django. Remaining processes are killed at the end."""
    with ExitStack() as ends:

        def start_one(module: str, *arguments: object, **environment: str) -> Process:
            known = {
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("DJANGO", "TEST"))
            }
            process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                cwd=ROOT,
                env=known | environment,
            )
            ends.callback(process.wait)
            ends.callback(process.kill)
            return process

        yield start_one


@pytest.fixture
def run(start: Start, url: str) -> Callable[..., Process]:
    return lambda operation, *arguments: start(
        "tests.broker.filesystem_programs", operation, url, *arguments
    )


def stop(*processes: Process) -> None:
    for process in processes:
        process.terminate()
    assert [process.wait(30) for process in processes] == [0] * len(processes)


# Two producers and two consumers


def test_twenty_thousand_messages_of_two_producers_reach_two_consumers_once_each(
    run: Start, tmp_path: Path
) -> None:
    notebooks = [tmp_path / "first", tmp_path / "second"]
    consumers = [run("consume", "numbers", notebook) for notebook in notebooks]
    producers = [run("produce", "numbers", first, 10_000) for first in (0, 10_000)]

    assert [producer.wait(90) for producer in producers] == [0, 0]
    until(lambda: sum(len(noted(notebook)) for notebook in notebooks) >= 20_000, within=60)
    stop(*consumers)

    assert all(noted(notebook) for notebook in notebooks), (
        "one consumer took everything: nothing was contended"
    )
    assert sorted(noted(notebooks[0]) + noted(notebooks[1])) == list(range(20_000))


def test_a_killed_consumer_loses_at_most_its_current_message(
    run: Start, url: str, notebook: Path
) -> None:
    kills, published = 8, 12_000
    assert run("produce", "numbers", 0, published).wait(60) == 0

    with Connection(url) as connection:
        for _ in range(kills):
            consumer = run("consume", "numbers", notebook)
            until(
                partial(_has_grown_or_is_drained, notebook, len(noted(notebook)) + 100, connection),
                within=30,
            )
            consumer.send_signal(signal.SIGKILL)
            consumer.wait()
        last = run("consume", "numbers", notebook)
        # The killed ones may have drained the queue before this one has begun.
        until(Path(f"{notebook}.{last.pid}").exists, within=30)
        until(lambda: size(connection, "numbers") == 0, within=30)
    stop(last)

    assert len(noted(notebook)) == len(set(noted(notebook)))
    assert published - kills <= len(noted(notebook)) <= published


def _has_grown_or_is_drained(notebook: Path, wanted: int, connection: Connection) -> bool:
    return len(noted(notebook)) >= wanted or size(connection, "numbers") == 0


def test_a_killed_producer_leaves_no_partial_message(
    run: Start, folder: Path, notebook: Path
) -> None:
    kills = 8
    consumer = run("consume", "numbers", notebook)

    for kill in range(kills):
        producer = run("produce", "numbers", kill * 1_000_000, 1_000_000)
        until(partial(_has_one_from, notebook, kill * 1_000_000), within=30)
        producer.send_signal(signal.SIGKILL)
        producer.wait()
    until(lambda: not list(queue_folder(folder, "numbers").glob("*.msg")), within=60)
    stop(consumer)

    assert len(noted(notebook)) == len(set(noted(notebook)))
    for kill in range(kills):
        of_this_one = sorted(number for number in noted(notebook) if number // 1_000_000 == kill)
        assert of_this_one == list(range(kill * 1_000_000, kill * 1_000_000 + len(of_this_one)))
    assert not list(folder.rglob("*.undecodable"))


def _has_one_from(notebook: Path, first: int) -> bool:
    return any(number >= first for number in noted(notebook))


# Bindings


def test_bindings_declared_by_four_processes_at_once_are_all_kept(run: Start, url: str) -> None:
    processes = [run("bind", "news", f"reader{number}", 50) for number in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4

    names = [f"reader{reader}.{number}" for reader in range(4) for number in range(50)]
    with Connection(url) as connection:
        Producer(connection, exchange=Exchange("news", type="fanout")).publish("hello")
        assert {name: take_all(connection, name) for name in names} == {
            name: ["hello"] for name in names
        }


# Celery


@pytest.fixture
def app(url: str, notebook: Path, start: Start) -> Iterator[Celery]:
    """Return an application whose prefork worker is running."""
    worker = start(
        *(
            "celery",
            "-A",
            "tests.broker.filesystem_app",
            "worker",
            "--concurrency",
            2,
            "--task-events",
        ),
        *(
            "--pool",
            "prefork",
            "--loglevel",
            "WARNING",
            "--hostname",
            f"worker{next(_workers)}@here",
        ),
        FILESYSTEM_BROKER=url,
        FILESYSTEM_NOTEBOOK=str(notebook),
    )
    with Celery("client", broker=url, set_as_current=False) as client:
        until(lambda: client.control.ping(timeout=0.5), within=30)
        yield client
    stop(worker)


_workers = count(1)


def test_a_prefork_worker_runs_five_hundred_tasks_and_answers_remote_control(
    app: Celery, notebook: Path
) -> None:
    for number in range(500):
        app.send_task("note", [number])
    until(lambda: len(noted(notebook)) >= 500, within=60)

    assert sorted(noted(notebook)) == list(range(500))
    assert [list(answer.values()) for answer in app.control.ping(timeout=30, limit=1)] == [
        [{"ok": "pong"}]
    ]
    assert "note" in next(iter(app.control.inspect(timeout=30, limit=1).registered().values()))


def test_a_worker_whose_children_are_all_busy_answers_remote_control(
    app: Celery, notebook: Path
) -> None:
    released = notebook.with_name("released")
    for number in range(8):
        app.send_task("hold", [number, str(released)])
    until(lambda: _running(app) == 2, within=30)

    assert app.control.ping(timeout=30, limit=1)

    released.touch()
    until(lambda: sorted(noted(notebook)) == list(range(8)), within=30)


def _running(app: Celery) -> int:
    return sum(
        len(tasks) for tasks in (app.control.inspect(timeout=30, limit=1).active() or {}).values()
    )


def test_a_worker_survives_a_folder_that_is_unavailable_for_a_while(
    app: Celery, folder: Path, notebook: Path
) -> None:
    app.send_task("note", [1])
    until(lambda: noted(notebook) == [1], within=30)
    queue = queue_folder(folder, "celery")
    away = queue.rename(queue.with_name("away"))
    queue.touch()
    until(lambda: not app.control.ping(timeout=0.5), within=30)

    queue.unlink()
    away.rename(queue)
    app.send_task("note", [2])

    until(lambda: noted(notebook) == [1, 2], within=30)
    assert app.control.ping(timeout=30, limit=1)


def test_a_prefork_worker_sends_its_events(app: Celery) -> None:
    events: list[str] = []
    with app.connection() as connection:
        receiver = app.events.Receiver(
            connection, handlers={"*": lambda event: events.append(event["type"])}
        )
        with receiver.consumer_context() as (listening_on, _channel, _consumers):
            app.send_task("note", [1])
            until(lambda: drained(listening_on) and "task-succeeded" in events, within=30)

    assert {"task-received", "task-started", "task-succeeded"} <= set(events)


def test_an_unreadable_file_does_not_stop_a_prefork_worker(
    app: Celery, folder: Path, notebook: Path
) -> None:
    app.send_task("note", [1])
    for number, content in enumerate(RUBBISH):
        (queue_folder(folder, "celery") / f"0-{number:02d}.msg").write_bytes(content)
    app.send_task("note", [2])

    until(lambda: sorted(noted(notebook)) == [1, 2], within=30)
    until(lambda: len(list(folder.rglob("*.undecodable"))) == len(RUBBISH), within=30)
    assert app.control.ping(timeout=30, limit=1)
