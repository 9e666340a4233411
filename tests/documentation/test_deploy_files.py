"""The deployment files of the documentation have valid syntax, and their commands can be parsed."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from django_durable_tasks import health
from django_durable_tasks.management.commands import durable, run_scheduler
from tests.documentation.pages import DOCS

FOLDER = DOCS / "how-to" / "deploy"
_COMMANDS = {"durable": durable.Command, "run_scheduler": run_scheduler.Command}
_CELERY_TASKS = ["celery", "-A", "django_durable_tasks", "worker"]


def _documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def _unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(FOLDER / "shop-tasks.service")
    return parser


def _containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for document in _documents("kubernetes.yaml"):
        pod = document["spec"]["template"]["spec"]
        yield from ((document, container) for container in pod["containers"])


def _shown() -> Iterator[list[str]]:
    for line in (FOLDER / "Procfile").read_text().splitlines():
        yield from map(shlex.split, line.partition(": ")[2].split(" && "))
    yield shlex.split(_unit()["Service"]["ExecStart"])
    for service in _documents("compose.yaml")[0]["services"].values():
        if command := service.get("command"):
            words = shlex.split(command)
            yield from map(shlex.split, (words[2] if words[0] == "sh" else command).split(" && "))
        yield service.get("healthcheck", {"test": ["CMD"]})["test"][1:]
    for _, container in _containers():
        yield container["command"]
        for probe in ("startupProbe", "livenessProbe"):
            yield container.get(probe, {"exec": {"command": []}})["exec"]["command"]


def test_every_command_can_be_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "check", lambda *_: (0, "healthy"))
    checked = set()
    for words in _shown():
        if "manage.py" in words:
            name, *rest = words[words.index("manage.py") + 1 :]
            checked.add(name)
            if name in _COMMANDS:
                parser = _COMMANDS[name]().create_parser("manage.py", name)
                parser.parse_args(rest)
        elif "django_durable_tasks.health" in words:
            checked.add("health")
            assert health.main(words[words.index("django_durable_tasks.health") + 1 :]) == 0
        elif words and words[0] == "celery":
            assert words[:4] == _CELERY_TASKS
    assert checked == {"migrate", "durable", "run_scheduler", "health"}


def test_each_line_of_the_procfile_names_a_process() -> None:
    lines = (FOLDER / "Procfile").read_text().splitlines()
    names = [match[1] for line in lines if (match := re.fullmatch(r"([a-z]+): \S.*", line))]
    assert names == ["release", "web", "tasks"]


def test_systemd_accepts_the_unit() -> None:
    service = _unit()["Service"]
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > 300
    if (analyze := shutil.which("systemd-analyze")) is None:
        return
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(FOLDER / "shop-tasks.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    # The program and the user do not exist on this machine.
    faults = [line for line in done.stderr.splitlines() if "shop-tasks" in line]
    assert [line for line in faults if "not executable" not in line] == []


def test_compose_has_no_server_but_postgresql() -> None:
    services = _documents("compose.yaml")[0]["services"]
    assert {service["image"].partition(":")[0] for service in services.values()} == {
        "postgres",
        "shop",
    }
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], check=False).returncode:
        return
    subprocess.run(
        [docker, "compose", "-f", str(FOLDER / "compose.yaml"), "config", "--quiet"],
        env={**os.environ, "POSTGRES_PASSWORD": "x"},
        check=True,
    )


def test_manifests_have_jobs_probes_and_grace_periods() -> None:
    found = {(document["kind"], document["metadata"]["name"]) for document, _ in _containers()}
    assert found == {
        ("Job", "shop-migrate"),
        ("Job", "shop-sync"),
        ("Deployment", "shop-scheduler"),
        ("Deployment", "shop-worker"),
    }
    for document, container in _containers():
        if document["kind"] == "Deployment":
            pod = document["spec"]["template"]
            assert document["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
            assert pod["spec"]["terminationGracePeriodSeconds"] > 0
            assert {"startupProbe", "livenessProbe"} <= set(container)
