"""Run functions concurrently, in threads with connections of their own that start together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, connection, connections, transaction

from tests.repetitions import repetitions

WITHIN = 60.0
ROUNDS = repetitions(8)


def race(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run all functions at once. Returns what each returned or raised, in their order."""
    gate = threading.Barrier(len(acts), timeout=WITHIN)
    answers: list[Any] = [None] * len(acts)

    def run(number: int, act: Callable[[], Any]) -> None:
        try:
            connection.ensure_connection()
            gate.wait()
            answers[number] = act()
        except Exception as error:  # noqa: BLE001 - the answer of a racer may be an exception
            answers[number] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN)
        assert not thread.is_alive(), f"a racer hangs; the others answered {answers}"
    return answers


def no_errors(answers: Sequence[Any]) -> list[Any]:
    """Return the answers, none of which may be an exception."""
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert not errors, errors
    return list(answers)


def on_another_connection(act: Callable[[], Any]) -> Any:
    """Run the function on another connection, for which waiting for a lock is an error."""

    def impatiently() -> Any:
        limit = (
            "SET lock_timeout = 1000"
            if connection.vendor == "postgresql"
            else "SET innodb_lock_wait_timeout = 1"
        )
        with connection.cursor() as cursor:
            cursor.execute(limit)
        return act()

    return no_errors(race([impatiently]))[0]


@contextmanager
def locked_rows(model: Any, keys: Sequence[Any]) -> Iterator[None]:
    """Lock rows in a transaction of the project, on another connection."""
    locked, over = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                assert len(model.objects.select_for_update().filter(pk__in=keys)) == len(keys)
                locked.set()
                over.wait(WITHIN)
        finally:
            connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert locked.wait(WITHIN)
    try:
        yield
    finally:
        over.set()
        thread.join(WITHIN)


def a_transaction_waits_for_a_lock() -> bool:
    """Return whether a transaction of this database waits for a lock. PostgreSQL only."""
    waiting = (
        "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND"
        " wait_event_type = 'Lock'"
    )
    with connection.cursor() as cursor:
        cursor.execute(waiting)
        return bool(cursor.fetchone()[0])


@contextmanager
def one_lost_reply() -> Iterator[list[int]]:
    """Let the next COMMIT of this thread's connection succeed while its reply is lost. Yields the
    number of lost replies.
    """
    lost: list[int] = []
    wrapper = connection
    commit = wrapper._commit  # type: ignore[attr-defined]

    def without_reply() -> None:
        commit()
        lose()

    def lose() -> None:
        if not lost:
            lost.append(1)
            raise OperationalError("the connection was closed before the reply to COMMIT came")

    def autocommitted(
        execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        answer = execute(sql, params, many, context)
        writes = any(word in sql for word in ("INSERT ", "UPDATE "))
        if writes and not wrapper.in_atomic_block:
            lose()
        return answer

    wrapper._commit = without_reply  # type: ignore[attr-defined]
    try:
        with wrapper.execute_wrapper(autocommitted):
            yield lost
    finally:
        del wrapper._commit  # type: ignore[attr-defined]
