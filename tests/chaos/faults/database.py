"""Faults of the database: sessions end, replies are lost, the server stops, refuses, locks, or is
unreachable.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import psycopg
import pymysql
from django.db import connection, connections

from tests.chaos.faults.registry import BESIDE_FILES, SERVERS, fault
from tests.chaos.figures import COMMITS_CUT, REPLIES_LOST
from tests.chaos.servers import administrator, mariadb_session
from tests.chaos.stage import Stage
from tests.waiting import until

_OTHERS = "datname = %s AND application_name NOT IN ('chaos-stage', 'chaos-administrator')"


@fault(10, "sessions-ended", BESIDE_FILES, databases=SERVERS, campaign=True)
def end_sessions(stage: Stage) -> None:
    """A random database session is terminated, five times per second."""
    with session_ender(stage) as end:
        stage.repeatedly(8, 0.2, lambda: end(idle=False, most=1))


@fault(33, "idle-sessions-ended", BESIDE_FILES, databases=SERVERS, campaign=True)
def end_idle_sessions(stage: Stage) -> None:
    """All database sessions that execute nothing are terminated, every two seconds, while functions
    run.
    """
    with session_ender(stage) as end:
        stage.repeatedly(12, 2.0, lambda: end(idle=True, most=1_000))


@contextmanager
def session_ender(stage: Stage) -> Iterator[Callable[..., None]]:
    """Yield a function that terminates random sessions of the processes, all or the ``idle`` ones,
    at most ``most``.
    """
    name = connection.settings_dict["NAME"]
    if stage.plan.database == "postgresql":
        with administrator(stage.database_url) as session:

            def end(*, idle: bool, most: int) -> None:
                state = "AND state = 'idle'" if idle else ""
                session.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
                    f" {_OTHERS} {state} ORDER BY random() LIMIT {most}",
                    [name],
                )

            yield end
        return
    with closing(mariadb_session(stage.database_url)) as client, client.cursor() as cursor:
        own = connection_id()

        def kill(*, idle: bool, most: int) -> None:
            state = "AND command = 'Sleep'" if idle else ""
            cursor.execute(
                f"SELECT id FROM information_schema.processlist WHERE db = %s AND id <> %s {state}"
                f" ORDER BY rand() LIMIT {most}",
                [name, own],
            )
            for (number,) in cursor.fetchall():
                with suppress(pymysql.MySQLError):  # it has ended meanwhile
                    cursor.execute(f"KILL {number}")

        yield kill


def connection_id() -> int:
    """Return the number of this process's session of MariaDB."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT connection_id()")
        return int(cursor.fetchone()[0])


@fault(11, "commits-cut", BESIDE_FILES, databases=SERVERS, campaign=True)
def cut_commits(stage: Stage) -> None:
    """The server executes COMMIT and other statements, and the connection breaks before their
    reply.
    """
    with replies_lost(stage, 0.25, 0.02):
        stage.linger(12)
        until(lambda: stage.notes[COMMITS_CUT], within=30, message="a COMMIT is cut")


@contextmanager
def replies_lost(stage: Stage, of_commits: float, of_others: float) -> Iterator[None]:
    """Lose the replies to these shares of all COMMITs and other statements."""
    lock = threading.Lock()

    def unlucky(data: bytes) -> bool:
        commits = b"COMMIT" in data
        with lock:
            lost = stage.random.random() < (of_commits if commits else of_others)
            stage.notes[REPLIES_LOST] += lost
            stage.notes[COMMITS_CUT] += lost and commits
        return lost

    for proxy in stage.databases():
        proxy.lose_replies(unlucky)
    try:
        yield
    finally:
        for proxy in stage.databases():
            proxy.lose_replies(None)


@fault(12, "database-unheard", BESIDE_FILES, databases=SERVERS, campaign=True)
def swallow_the_database(stage: Stage) -> None:
    """All traffic to and from the database is dropped for longer than a lease, then all
    connections break.
    """
    for proxy in stage.databases():
        proxy.freeze()
    try:
        stage.linger(8)
    finally:
        for proxy in stage.databases():
            proxy.restore()

    def storm() -> None:
        for proxy in stage.databases():
            proxy.storm()

    stage.repeatedly(3, 0.5, storm)


@fault(13, "database-restarted", BESIDE_FILES, private=True, campaign=True)
def restart_the_database(stage: Stage) -> None:
    """The database stops immediately, recovers from its log and is available again."""
    connections.close_all()
    assert stage.database is not None
    stage.database.stop(signal.SIGQUIT)
    stage.linger(1)
    stage.database.start()


@fault(14, "database-read-only", BESIDE_FILES, private=True)
def refuse_writes(stage: Stage) -> None:
    """The database refuses every write, as after a fail-over to a replica or with a full disk."""
    _tell(stage, "default_transaction_read_only", "on")
    try:
        stage.linger(6)
    finally:
        _tell(stage, "default_transaction_read_only", None)


@fault(15, "serializable", BESIDE_FILES, private=True)
def serialize(stage: Stage) -> None:
    """Every transaction is serializable, and a session locks random rows for 300 ms again and
    again.
    """
    url = stage.database_url.rpartition("/")[0] + f"/{connection.settings_dict['NAME']}"

    def lock_rows() -> None:
        with administrator(url) as session, session.transaction():
            session.execute(
                "SELECT id FROM durable_tasks_task WHERE completed_at IS NULL ORDER BY random()"
                " LIMIT 20 FOR UPDATE"
            )
            threading.Event().wait(0.3)

    def locked() -> None:
        try:
            lock_rows()
        except psycopg.Error:
            stage.notes["lock sessions that failed"] += 1

    _tell(stage, "default_transaction_isolation", "serializable")
    try:
        stage.repeatedly(8, 0.1, locked)
    finally:
        _tell(stage, "default_transaction_isolation", None)


def _tell(stage: Stage, name: str, value: str | None) -> None:
    with administrator(stage.database_url) as session:
        session.execute(
            f"ALTER SYSTEM SET {name} = '{value}'" if value else f"ALTER SYSTEM RESET {name}"
        )
        session.execute("SELECT pg_reload_conf()")
