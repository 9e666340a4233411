"""The example's platform with its three customers, started by `manage.py run` on any pair."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from example_project.customers.client import Client
from tests.processes.billing import OWN_VARIABLES, own_database, own_queues
from tests.processes.cluster import SHORT
from tests.runs import ROOT
from tests.waiting import until

STARTING, ENDING, WITHIN = 300, 100, 240
"""Seconds: the interpreters start one after the other, on a possibly busy machine."""
MANAGE = str(ROOT / "example_project" / "manage.py")
_BUSY = """
from django_durable_tasks.models import Node, Task
runs = Task.objects.running().filter(tenant__slug="acme").values("node")
print("pid", Node.objects.filter(pk__in=runs).values_list("pid", flat=True).first() or 0)
"""
_ENDED = ("SUCCESS", "FAILED", "CANCELLED", "SKIPPED", "EXPIRED")


@dataclass(frozen=True)
class CustomerPlatform:
    """The running platform: the addresses of its API and of the customers' servers, and the keys."""

    api: str
    servers: str
    keys: dict[str, str]
    folder: Path
    environment: dict[str, str]

    def customer(self, slug: str) -> CustomerOfTest:
        """Return a customer with its key."""
        return CustomerOfTest(self, slug, Client(self.api, self.keys[slug]))

    def manage(self, *arguments: str) -> str:
        """Run a command of the project and return what it prints."""
        done = subprocess.run(
            [sys.executable, MANAGE, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=ENDING,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def busy_worker(self) -> int:
        """Return the process group of a worker that runs a task of Acme, or 0."""
        found = self.manage("shell", "-c", _BUSY).rpartition("pid ")[2]
        return int(found)


@dataclass(frozen=True)
class CustomerOfTest:
    """One customer of the platform."""

    platform: CustomerPlatform
    slug: str
    api: Client

    @property
    def url(self) -> str:
        """The address of the customer's server."""
        return f"{self.platform.servers}/{self.slug}"

    def callback(self, to: str, body: Any = None, **fields: Any) -> str:
        """Schedule a callback to a path of the customer's server; return the id of its task.

        ``fields`` are those of the task; ``target`` has further members of its target.
        """
        config = {"url": f"{self.url}/{to}", "body": body, **fields.pop("target", {})}
        answer = self.api.post(
            "/tasks", {"target_type": "HTTP_CALLBACK", "target_config": config, **fields}
        )
        assert answer.status == 201, answer.body
        return str(answer.body["task_id"])

    def task(self, task_id: str) -> dict[str, Any]:
        """Read a task with its result."""
        answer = self.api.get(f"/tasks/{task_id}", include="result,target_config")
        assert answer.ok, answer.body
        found: dict[str, Any] = answer.body
        return found

    def ended(self, task_id: str) -> dict[str, Any]:
        """Wait until the task has ended, and return it."""
        until(
            lambda: self.task(task_id)["status"] in _ENDED,
            within=WITHIN,
            message=f"task {task_id} ends",
        )
        return self.task(task_id)

    def received(self, to: str) -> list[dict[str, Any]]:
        """Return the requests that arrived at a path of the customer's server."""
        found = Client(self.platform.servers).get(f"/{self.slug}").body
        return [request for request in found if request["to"] == to]

    def mails(self) -> list[str]:
        """Return the e-mails to the customer."""
        files = (self.platform.folder / "mails").glob("*.log")
        texts = [file.read_text(errors="replace") for file in files]
        return [text for text in texts if f"To: ops@{self.slug}.example" in text]

    def cancel_open(self) -> None:
        """Cancel the tasks of the customer that have not started."""
        for status in ("PENDING", "QUEUED"):
            for task in self.api.get("/tasks", status=status, limit=200).body["data"]:
                self.api.post(f"/tasks/{task['task_id']}/cancel")


@contextmanager
def customer_platform(folder: Path, vendor: str, broker: str) -> Iterator[CustomerPlatform]:
    """Start `manage.py run` and stop it at the end."""
    log, files = folder / "run.log", folder / "billing"
    with own_database(vendor) as database, own_queues(broker) as queues, log.open("wb") as said:
        inherited = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        environment = {
            **inherited,
            **queues,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_URL": database,
            "DURABLE_TASKS": json.dumps(dict(SHORT)),
        }
        process = subprocess.Popen(
            [
                sys.executable,
                MANAGE,
                "run",
                "--port",
                "0",
                "--customers-port",
                "0",
                "--folder",
                str(files),
            ],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield _greeted(process, log, files, environment)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(ENDING)
            sys.stdout.write(log.read_text(errors="replace")[-3000:])


def _greeted(
    process: subprocess.Popen[bytes], log: Path, files: Path, environment: dict[str, str]
) -> CustomerPlatform:
    def text() -> str:
        return log.read_text(errors="replace")

    until(
        lambda: "Ctrl-C stops everything" in text() or process.poll() is not None,
        within=STARTING,
        message="run prints what can be tried",
    )
    api = re.search(r"API=(\S+)", text())
    servers = re.search(r"(http://127\.0\.0\.1:\d+)/acme", text())
    assert api, text()
    assert servers, text()
    own = {"BILLING_FOLDER": str(files), "CUSTOMERS_PORT": servers[1].rpartition(":")[2]}
    keys = json.loads((files / "keys.json").read_text())
    return CustomerPlatform(api[1], servers[1], keys, files, environment | own)
