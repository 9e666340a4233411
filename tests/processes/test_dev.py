"""``durable dev`` in a project without a Celery application: one command, one Ctrl-C, code reload."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django.plugin import DjangoDbBlocker

from example_project.supervision.processes import free_port
from tests.processes.cluster import STARTING, STOPPING, Program
from tests.processes.newcomer import (
    TASKS,
    Newcomer,
    group_is_gone,
    migrated,
    newcomer_in,
    printed,
    processes_of_group,
    project,
)
from tests.waiting import until

__all__ = ["migrated", "project"]


@pytest.fixture
def bare(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[Newcomer]:
    """Provide a project whose migrations are not applied."""
    with newcomer_in(tmp_path, django_db_blocker) as project:
        yield project


def _log(project: Newcomer, task: str) -> str:
    return project.shell(
        "from django_durable_tasks.models import Task;"
        f"task = Task.objects.get(pk={task!r});"
        "print('log', task.status, task.crashes,"
        " [e.status for e in task.executions.order_by('pk')], task.result)"
    )


def _processes_of_the_site(program: Program) -> list[int]:
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,pgid=,args="], capture_output=True, text=True, check=True
    ).stdout
    fields = [line.split(maxsplit=2) for line in listed.splitlines()]
    return [
        int(pid)
        for pid, group, arguments in fields
        if int(group) == program.process.pid and " runserver " in arguments
    ]


@pytest.mark.smoke
def test_tasks_run_without_a_celery_application_and_one_ctrl_c_ends_all(project: Newcomer) -> None:
    dev = project.ready(project.dev("-c", "2"))
    first, other = project.schedule("add.schedule(1, 2)"), project.schedule("mail.schedule()")
    printed(dev, f"accounts.tasks.add {first} succeeded after")
    printed(dev, f"accounts.tasks.mail {other} succeeded after")
    assert "worker    adding 1 2" in dev.output()
    assert "\033[" not in dev.output()
    dev.signal(signal.SIGINT)  # to the whole group, as a terminal sends Ctrl-C
    assert dev.process.wait(STOPPING) == 0
    until(lambda: group_is_gone(dev), within=10)
    assert "Traceback" not in dev.output()


@pytest.mark.parametrize("number", [2, 3, 4])
def test_ctrl_c_while_the_processes_start_prints_no_traceback(
    project: Newcomer, number: int
) -> None:
    """With 2 processes the code is being imported, with 4 scheduler and worker are."""
    dev = project.dev()
    printed(dev, "Ctrl-C stops them")
    until(lambda: processes_of_group(dev) >= number, within=STARTING)
    dev.signal(signal.SIGINT)
    assert dev.process.wait(STOPPING) == 0
    until(lambda: group_is_gone(dev), within=10)
    assert "Traceback" not in dev.output()
    assert "KeyboardInterrupt" not in dev.output()


def test_sigterm_to_the_first_process_ends_all_after_the_running_task(project: Newcomer) -> None:
    dev = project.ready(project.dev())
    task = project.schedule("sleep.schedule(3)")
    printed(dev, f"sleep {task} started")
    assert dev.terminate() == 0
    until(lambda: group_is_gone(dev), within=10)
    assert "log SUCCESS 0 ['SUCCESS']" in _log(project, task)


def test_if_the_first_process_is_killed_the_others_end(project: Newcomer) -> None:
    dev = project.ready(project.dev())
    os.kill(dev.process.pid, signal.SIGKILL)
    dev.process.wait(STOPPING)
    until(lambda: group_is_gone(dev), within=STOPPING)


def test_changed_code_runs_and_a_running_task_is_finished_or_returned(project: Newcomer) -> None:
    dev = project.ready(project.dev())
    short, long = project.schedule("sleep.schedule(2)"), project.schedule("sleep.schedule(600)")
    printed(dev, f"sleep {short} started")
    printed(dev, f"sleep {long} started")
    changed = TASKS.replace("time.sleep(seconds)", "pass").replace("first version", "second")
    project.write("accounts/tasks.py", changed)
    printed(dev, r"tasks.py changed")
    printed(dev, "worker +is ready", times=2)
    printed(dev, f"sleep {long} succeeded")
    assert "log SUCCESS 0 ['SUCCESS'] first version" in _log(project, short)
    assert "log SUCCESS 0 ['LOST', 'SUCCESS'] second" in _log(project, long)


def test_after_a_syntax_error_the_corrected_code_runs(project: Newcomer) -> None:
    dev = project.ready(project.dev())
    project.write("accounts/tasks.py", "from accounts import prices\n" + TASKS)
    project.write("accounts/prices.py", "def price(:\n")
    printed(dev, "SyntaxError")
    printed(dev, "Waiting for a change of the code")
    project.write("accounts/prices.py", "price = 1\n")
    printed(dev, "worker +is ready", times=2)
    task = project.schedule("add.schedule(1, 2)")
    printed(dev, f"add {task} succeeded")


def test_after_a_syntax_error_the_development_server_serves_the_corrected_code(
    project: Newcomer,
) -> None:
    port = free_port()
    dev = project.ready(project.dev("--web", str(port)))
    printed(dev, "Starting development server")

    def written_until(text: str, words: str, times: int) -> None:
        written_at = 0.0

        def is_printed() -> bool:
            nonlocal written_at
            # Django ignores a change in the second before it begins to watch a file.
            if time.monotonic() > written_at + 10:
                written_at = time.monotonic()
                project.write("accounts/tasks.py", text)
            return dev.output().count(words) >= times

        until(is_printed, within=STARTING)

    written_until(TASKS + "x = (\n", "SystemCheckError", 1)
    written_until(TASKS, "Starting development server", 2)


def test_a_development_server_that_ended_is_reported(project: Newcomer) -> None:
    dev = project.ready(project.dev("--web", str(free_port())))
    printed(dev, "Starting development server")
    for process in _processes_of_the_site(dev):
        os.kill(process, signal.SIGKILL)
    printed(dev, "web +ended with exit code")


def test_a_failed_task_is_shown_with_its_page_in_the_admin(project: Newcomer) -> None:
    port = free_port()
    dev = project.ready(project.dev("--web", str(port)))
    task = project.schedule("fail.schedule('nowhere')")
    printed(dev, f"fail {task} failed after .*: ValueError: no address: nowhere")
    assert "accounts/tasks.py" in dev.output()
    assert "django_durable_tasks/celery/" not in dev.output()  # the frames that call the function
    link = printed(dev, rf"http://127.0.0.1:{port}/\S+")[0]
    assert task in printed(dev, rf"http://127.0.0.1:{port}/admin/\S+")[0]
    until(lambda: "Starting development server" in dev.output(), within=STOPPING)
    with urllib.request.urlopen(link, timeout=30) as answer:
        assert "/admin/login/" in answer.url
    dev.signal(signal.SIGINT)
    assert dev.process.wait(STOPPING) == 0
    until(lambda: group_is_gone(dev), within=10)


def test_a_task_that_waits_for_the_start_of_the_worker_is_not_explained(project: Newcomer) -> None:
    task = project.schedule("add.schedule(1, 2)")
    dev = project.dev()
    printed(dev, f"add {task} succeeded")
    assert " waits: " not in dev.output()


def test_two_ctrl_c_in_a_row_end_the_development_server_too(project: Newcomer) -> None:
    dev = project.ready(project.dev("--web", str(free_port())))
    until(lambda: "Starting development server" in dev.output(), within=STARTING)
    dev.signal(signal.SIGINT)
    dev.signal(signal.SIGINT)
    assert dev.process.wait(STOPPING) == 0
    until(lambda: group_is_gone(dev), within=10)


def test_the_reason_why_a_task_waits_is_shown_once(project: Newcomer) -> None:
    dev = project.ready(project.dev())
    project.manage("durable", "pause", "mail", "--reason", "provider is down")
    task = project.schedule("mail.schedule()")
    printed(dev, f"mail {task} waits: Queue mail was paused.*provider is down")
    other = project.schedule("add.using(run_at=timezone.now() + timedelta(hours=1)).schedule(1, 2)")
    printed(dev, f"add {other} waits: It is not due yet")
    done = project.schedule("sleep.schedule(4)")
    printed(dev, f"sleep {done} succeeded")
    assert len(re.findall(f"{task} waits", dev.output())) == 1


def test_a_second_ctrl_c_interrupts_the_running_task_which_runs_again(project: Newcomer) -> None:
    dev = project.ready(project.dev())
    task = project.schedule("sleep.schedule(600)")
    printed(dev, f"sleep {task} started")
    dev.signal(signal.SIGINT)
    printed(dev, "Waiting for 1 running task")
    dev.signal(signal.SIGINT)
    assert dev.process.wait(STOPPING) == 0
    assert "log PENDING 0 ['LOST']" in _log(project, task)


# What prevents the start ------------------------------------------------------------------------


def _refused(project: Newcomer, *options: str) -> str:
    code, output = project.manage("durable", "dev", *options)
    assert code == 1, output
    assert "Traceback" not in output
    return output


def test_missing_migrations_are_named_with_the_remedy(bare: Newcomer) -> None:
    assert re.search(
        r"\d+ migrations of .* are not applied: run `manage.py migrate`", _refused(bare)
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("CELERY_BROKER_URL = None", "No broker is configured"),
        (
            "CELERY_BROKER_URL = 'redis://127.0.0.1:1/0'",
            "The broker does not answer (redis://127.0.0.1:1/0",
        ),
        (
            "from tests.backends import _sqlite; DATABASES['default'] = _sqlite(BASE_DIR / 'no/db')",
            "The database 'default' does not answer",
        ),
    ],
)
def test_what_prevents_the_start_is_one_sentence(
    project: Newcomer, settings: str, sentence: str
) -> None:
    project.settings(settings)
    assert sentence in _refused(project)


def test_a_port_in_use_is_named_with_the_remedy(project: Newcomer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        output = _refused(project, "--web", str(port))
    assert f"cannot listen at 127.0.0.1:{port}" in output
    assert "choose another port, for example --web" in output


def test_a_celery_module_that_is_not_imported_is_named(project: Newcomer) -> None:
    project.write("shop/celery.py", "from celery import Celery\napp = Celery('shop')\n")
    assert "shop.celery" in _refused(project)


def test_a_task_module_that_cannot_be_imported_is_named(project: Newcomer) -> None:
    project.write("accounts/tasks.py", "import nowhere\n")
    assert "The modules of tasks cannot be imported" in _refused(project)
