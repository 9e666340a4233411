"""Behind PgBouncer in transaction mode, a call never waits for a second connection inside its
transaction.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from django_durable_tasks.models import Task
from tests import pooling
from tests.runs import ROOT

pytestmark = [pytest.mark.pgbouncer, pytest.mark.smoke, pytest.mark.usefixtures("rows")]


def test_as_many_transactions_as_pooled_connections_do_not_deadlock(
    tmp_path: Path,
) -> None:
    callers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.processes.pooled_caller",
                str(tmp_path),
                str(pooling.SLOTS),
                str(number),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for number in range(pooling.SLOTS)
    ]
    try:
        said = [caller.communicate(timeout=90)[0].decode() for caller in callers]
    finally:
        for caller in callers:
            caller.kill()
            caller.wait()
    assert [caller.returncode for caller in callers] == [0] * pooling.SLOTS, "\n".join(said)
    assert Task.objects.count() == pooling.SLOTS * 3 * 2


def test_this_run_uses_the_pooler() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT inet_server_port()")
        (port,) = cursor.fetchone()
    assert port != int(connection.settings_dict["PORT"])
