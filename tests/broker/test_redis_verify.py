"""``durable verify`` compares the due index in Redis with the database, repairs both directions,
and reports if it cannot check.
"""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_durable_tasks import ports
from django_durable_tasks.contrib.verify import runner
from django_durable_tasks.contrib.verify.check import read_context
from django_durable_tasks.models import Node, Task
from django_durable_tasks.scheduler import redis_index, shared_index
from django_durable_tasks.scheduler.due_index import DueEntry
from django_durable_tasks.scheduler.notify_on_commit import OnCommitNotifier
from django_durable_tasks.scheduler.redis_index import (
    RedisConnection,
    RedisDueIndex,
    RedisEntries,
    instant_ms,
    member_of,
)
from django_durable_tasks.store.clock import database_now
from tests.broker.test_redis_away import frozen, url
from tests.broker.test_redis_loader import redis_connection, rows_due, taken
from tests.database.commands.durable_command import durable
from tests.factories import a_node
from tests.processes.cluster import SHORT

__all__ = ["redis_connection", "url"]
CHECKS = ["due-entries", "due-missing"]


def _find() -> list[tuple[str, Any]]:
    answers = runner.verify(runner.chosen(["due-index"]))
    assert not [answer.error for answer in answers if answer.error]
    return [(finding.check, finding.key) for answer in answers for finding in answer.findings]


def _repair() -> list[tuple[str, str]]:
    operations = runner.repair(runner.verify(runner.chosen(["due-index"])))
    return [(repaired.finding.check, repaired.done or repaired.left) for repaired in operations]


def _settle() -> None:
    """Make all rows old enough to be checked."""
    Task.objects.unguarded().update(updated_at=database_now() - timedelta(seconds=100))


def _filled(*seconds: float) -> list[uuid.UUID]:
    """Create tasks, fill the index, and make all rows old enough to be checked."""
    ids = rows_due(*seconds)
    shared_index.fill_redis(database_now())
    _settle()
    return ids


def _due(task_id: uuid.UUID) -> DueEntry:
    row = Task.objects.get(pk=task_id)
    assert row.due_at is not None
    return DueEntry(row.due_at, row.queue, row.pk, row.priority, row.shard_key)


def test_an_index_filled_by_the_leader_has_no_finding(redis_connection: RedisConnection) -> None:
    _filled(2, 30, 100, 400)
    assert _find() == []
    assert _repair() == []


@pytest.mark.parametrize(
    ("damage", "right"),
    [
        (
            lambda pk: Task.objects.unguarded().filter(pk=pk).update(status="SUCCESS", due_at=None),
            "the task is SUCCESS",
        ),
        (
            lambda pk: (
                Task.objects.unguarded()
                .filter(pk=pk)
                .update(due_at=datetime(2100, 1, 1, tzinfo=UTC))
            ),
            "2100-01-01",
        ),
    ],
)
def test_invalid_entries_are_found_and_removed(
    redis_connection: RedisConnection, damage: Any, right: str
) -> None:
    good, bad = _filled(50, 60)
    member = member_of(_due(bad))
    damage(bad)
    assert _find() == [("due-entries", member)]
    answer = durable("verify", "--only", "due-index")
    assert (answer.code, right in answer.out, "LATE due entry" in answer.out) == (1, True, True)
    assert _repair() == [("due-entries", "removed")]
    assert _find() == []
    assert RedisEntries(redis_connection).members([good, bad]) == {good: member_of(_due(good))}
    assert taken(redis_connection) == [good]


def test_an_entry_without_a_task_is_removed(redis_connection: RedisConnection) -> None:
    _filled(50)
    redis_connection.client.zadd(RedisDueIndex(redis_connection)._keys[0], {"nonsense": 5})
    assert _find() == [("due-entries", "nonsense")]
    assert _repair() == [("due-entries", "removed")]
    assert _find() == []


def test_a_missing_entry_of_a_waiting_task_is_found_and_added(
    redis_connection: RedisConnection,
) -> None:
    first, lost = _filled(50, 60)
    RedisDueIndex(redis_connection).discard([lost])
    assert _find() == [("due-missing", lost)]
    assert _repair() == [("due-missing", "added")]
    assert _find() == []
    assert taken(redis_connection) == [first, lost]


def test_an_entry_with_another_instant_is_replaced_by_the_right_one(
    redis_connection: RedisConnection,
) -> None:
    [moved] = _filled(60)
    before = member_of(_due(moved))
    Task.objects.unguarded().filter(pk=moved).update(due_at=database_now() + timedelta(seconds=90))
    assert _find() == [("due-entries", before), ("due-missing", moved)]
    assert _repair() == [("due-entries", "removed"), ("due-missing", "added")]
    assert _find() == []
    assert RedisEntries(redis_connection).instants([moved]) == {moved: instant_ms(_due(moved).at)}


def test_a_lost_member_is_added_again(redis_connection: RedisConnection) -> None:
    [lost] = _filled(60)
    redis_connection.client.zrem(RedisDueIndex(redis_connection)._keys[0], member_of(_due(lost)))
    assert _repair() == [("due-missing", "added")]
    assert taken(redis_connection) == [lost]


def test_recently_changed_or_almost_due_tasks_and_unfilled_ranges_have_no_findings(
    redis_connection: RedisConnection,
) -> None:
    soon, moved, gone, later = _filled(3, 60, 70, 310)
    RedisDueIndex(redis_connection).discard([soon, moved, later])
    Task.objects.unguarded().filter(pk=moved).update(updated_at=database_now())
    Task.objects.unguarded().filter(pk=gone).update(
        status="SUCCESS", due_at=None, updated_at=database_now()
    )
    assert _find() == []


def test_an_index_without_mark_is_not_compared_with_the_database(
    redis_connection: RedisConnection,
) -> None:
    _filled(60)
    redis_connection.client.delete(*RedisDueIndex(redis_connection)._keys)
    assert _find() == []


def test_a_change_between_read_and_repair_is_kept(redis_connection: RedisConnection) -> None:
    stale, lost = _filled(50, 60)
    entries = RedisEntries(redis_connection)
    due = _due(lost)
    assert entries.drop({member_of(_due(stale)): 5}) == set()
    assert entries.put([due], {}) == set(), "it is known by a member that was not seen"
    assert entries.put([due._replace(shard=9)], {lost: member_of(due)}) == {lost}
    assert entries.members([lost]) == {lost: member_of(due._replace(shard=9))}
    assert entries.number() == 2


def test_every_entry_is_read_page_by_page(
    redis_connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_index, "_SCAN", 7)
    now = database_now()
    strangers = [
        DueEntry(now + timedelta(seconds=9), "mail", uuid.UUID(int=number), 0, 1)
        for number in range(1, 1_001)
    ]
    RedisDueIndex(redis_connection).add(strangers)
    answers = runner.verify(runner.chosen(["due-entries"]))
    assert {finding.key for finding in answers[0].findings} == {member_of(due) for due in strangers}


def test_entries_of_unknown_tasks_may_belong_to_another_installation_and_stay(
    redis_connection: RedisConnection,
) -> None:
    [_, theirs] = _filled(50, 60)
    Task.objects.unguarded().filter(pk=theirs).delete()
    answer = durable("verify", "--only", "due-index")
    assert (answer.code, "none, because there is no such task" in answer.out) == (1, True)
    [repaired] = runner.repair(runner.verify(runner.chosen(["due-index"])))
    assert (repaired.done, "another installation" in repaired.left) == ("", True)
    assert theirs in RedisEntries(redis_connection).members([theirs])


def test_a_row_locked_between_read_and_repair_gets_no_entry(
    redis_connection: RedisConnection,
) -> None:
    [held] = _filled(60)
    RedisDueIndex(redis_connection).discard([held])
    [missing] = runner.verify(runner.chosen(["due-missing"]))
    assert missing.check.repair is not None
    Task.objects.unguarded().filter(pk=held).update(due_at=datetime(9999, 1, 1, tzinfo=UTC))
    assert missing.check.repair(read_context(), missing.findings) == {}
    assert RedisEntries(redis_connection).members([held]) == {}


def test_the_index_is_not_checked_if_nodes_of_another_region_change_the_rows(
    redis_connection: RedisConnection,
) -> None:
    [lost] = _filled(60)
    RedisDueIndex(redis_connection).discard([lost])
    node = a_node(region="south", stopped=100.0, seen=100.0)
    assert _find() == []
    assert durable("verify", "--only", "due-index").out.count(
        "regions 'south' change the same tasks"
    ) == len(CHECKS)
    Node.objects.filter(pk=node.pk).update(last_seen_at=database_now() - timedelta(seconds=1_000))
    assert _find() == [("due-missing", lost)]


def test_while_redis_is_unavailable_these_checks_report_it_and_the_others_run(
    redis_connection: RedisConnection, settings: Any, url: str
) -> None:
    settings.DURABLE_TASKS = {**SHORT, "REDIS_URL": url}
    redis_index.close_idle()
    ids = _filled(60)
    Task.objects.unguarded().filter(pk=ids[0]).update(
        attempts=-1, status="SUCCESS", due_at=None, completed_at=None
    )
    with frozen(url):
        answer = durable("verify", "--format", "json")
    results = {row["check"]: row for row in answer.data["checks"]}
    assert (answer.code, answer.data["complete"]) == (2, False)
    assert ["Redis does not serve (TimeoutError)" in results[name]["error"] for name in CHECKS] == [
        True,
        True,
    ]
    assert results["completion-times"]["findings"] == 1


def test_without_redis_there_is_nothing_to_check(
    redis_connection: RedisConnection, settings: Any
) -> None:
    settings.DURABLE_TASKS = dict(SHORT)
    answer = durable("verify", "--only", "due-index")
    assert answer.code == 0
    assert answer.out.count("nothing to check: REDIS_URL is not set") == len(CHECKS)


def test_a_task_whose_shard_is_repaired_gets_an_entry_in_the_right_one(
    redis_connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    [row] = _filled(60)
    right = _due(row)
    wrong = right._replace(shard=(right.shard + 1) % 64)
    Task.objects.unguarded().filter(pk=row).update(shard_key=wrong.shard)
    RedisDueIndex(redis_connection).add([wrong])
    monkeypatch.setattr(ports, "due", OnCommitNotifier())
    [repaired] = runner.repair(runner.verify(runner.chosen(["shard-keys"])))
    assert repaired.done == "written"
    assert _due(row) == right
    assert RedisEntries(redis_connection).members([row]) == {row: member_of(right)}
