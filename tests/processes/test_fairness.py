"""A customer with a backlog and a server that hangs does not stop its neighbour, although no
operator has set a limit.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from django_durable_tasks import http_callback
from django_durable_tasks.models import Task
from tests.factories import a_tenant, many_tasks
from tests.http_servers import listening
from tests.processes.cluster import SHORT, Cluster
from tests.processes.rows import ended
from tests.project import bodies

_BACKLOG, _CALLBACKS, _OWN = 1_000, 20, 12
# Seconds. The callbacks hang, as long as a callback may, for longer than the neighbour is given.
_HANGING, _WITHIN = 60, 50


def test_a_neighbour_runs_beside_a_backlog_and_callbacks_that_hang(
    cluster: Cluster, settings: Any
) -> None:
    over = threading.Event()

    def hang(_conn: socket.socket, _request: bytes) -> None:
        over.wait(_HANGING)

    with listening(hang) as server:
        settings.DURABLE_TASKS = {
            **SHORT,
            "HTTP_ALLOW": ["127.0.0.0/8"],
            "HTTP_PORTS": [server.port],
        }
        given = {"TEST_DURABLE_TASKS": json.dumps(settings.DURABLE_TASKS)}
        noisy, quiet = a_tenant(), a_tenant()
        cluster.worker(slots=4, **given)
        cluster.scheduler(**given)
        cluster.ready()
        try:
            for number in range(_CALLBACKS):
                call = http_callback.using(tenant=noisy)
                call.schedule(url=server.url(), timeout=_HANGING, endpoint=f"receiver {number}")
            many_tasks(_BACKLOG, tenant=noisy, name=bodies.add.name, args=[1, 2], due=-60)
            server.received(1)
            for _ in range(_OWN):
                task = ended(bodies.add.using(tenant=quiet).schedule(1, 2), within=_WITHIN)
                assert task.status == "SUCCESS"
            callbacks = Task.objects.filter(name=http_callback.name)
            assert callbacks.open().count() == _CALLBACKS, "none has ended meanwhile"
        finally:
            over.set()
            for program in cluster.programs:
                program.kill()
