"""``durable verify`` compares the due index in Redis with the rows, mends both ways, and says when
it cannot look.
"""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_durable_tasks import ports
from django_durable_tasks.due_index import loader, redis_client, redis_entries
from django_durable_tasks.due_index.redis import RedisDueIndex, instant_ms, member_of
from django_durable_tasks.due_index.redis_client import RedisConnection
from django_durable_tasks.due_index.redis_entries import RedisEntries
from django_durable_tasks.due_index.types import Due
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.verify import runner
from django_durable_tasks.engine.verify.check import read_context
from django_durable_tasks.models import Node, Task
from django_durable_tasks.notifier.notify_on_commit import OnCommitNotifier
from tests.broker.test_redis_away import frozen, url
from tests.broker.test_redis_filling import door, rows_due, taken
from tests.database.commands.durable_command import durable
from tests.factories import a_node
from tests.processes.fleet import SHORT

__all__ = ["door", "url"]
CHECKS = ["due-entries", "due-missing"]


def _look() -> list[tuple[str, Any]]:
    answers = runner.verify(runner.chosen(["due-index"]))
    assert not [answer.error for answer in answers if answer.error]
    return [(finding.check, finding.key) for answer in answers for finding in answer.findings]


def _mend() -> list[tuple[str, str]]:
    deeds = runner.repair(runner.verify(runner.chosen(["due-index"])))
    return [(deed.finding.check, deed.done or deed.left) for deed in deeds]


def _settle() -> None:
    """Let all rows have stood as they are for a while."""
    Task.objects.unguarded().update(updated_at=database_now() - timedelta(seconds=100))


def _filled(*seconds: float) -> list[uuid.UUID]:
    """Make rows, let the leader fill the set, and let everything settle."""
    ids = rows_due(*seconds)
    loader.fill(database_now())
    _settle()
    return ids


def _due(task_id: uuid.UUID) -> Due:
    row = Task.objects.get(pk=task_id)
    assert row.due_at is not None
    return Due(row.due_at, row.queue, row.pk, row.priority, row.shard_key)


def test_a_set_that_the_leader_filled_has_no_finding(door: RedisConnection) -> None:
    _filled(2, 30, 100, 400)
    assert _look() == []
    assert _mend() == []


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
def test_entries_that_say_nothing_are_found_and_removed(
    door: RedisConnection, damage: Any, right: str
) -> None:
    good, bad = _filled(50, 60)
    member = member_of(_due(bad))
    damage(bad)
    assert _look() == [("due-entries", member)]
    answer = durable("verify", "--only", "due-index")
    assert (answer.code, right in answer.out, "LATE due entry" in answer.out) == (1, True, True)
    assert _mend() == [("due-entries", "removed")]
    assert _look() == []
    assert RedisEntries(door).members([good, bad]) == {good: member_of(_due(good))}
    assert taken(door) == [good]


def test_an_entry_of_no_task_at_all_is_removed(door: RedisConnection) -> None:
    _filled(50)
    door.client.zadd(RedisDueIndex(door)._keys[0], {"nonsense": 5})
    assert _look() == [("due-entries", "nonsense")]
    assert _mend() == [("due-entries", "removed")]
    assert _look() == []


def test_a_waiting_row_that_the_set_should_hold_is_found_and_added(door: RedisConnection) -> None:
    first, lost = _filled(50, 60)
    RedisDueIndex(door).discard([lost])
    assert _look() == [("due-missing", lost)]
    assert _mend() == [("due-missing", "added")]
    assert _look() == []
    assert taken(door) == [first, lost]


def test_an_entry_of_another_instant_is_removed_and_the_right_one_added(
    door: RedisConnection,
) -> None:
    [moved] = _filled(60)
    before = member_of(_due(moved))
    Task.objects.unguarded().filter(pk=moved).update(due_at=database_now() + timedelta(seconds=90))
    assert _look() == [("due-entries", before), ("due-missing", moved)]
    assert _mend() == [("due-entries", "removed"), ("due-missing", "added")]
    assert _look() == []
    assert RedisEntries(door).instants([moved]) == {moved: instant_ms(_due(moved).at)}


def test_a_member_that_the_set_forgot_is_added_again(door: RedisConnection) -> None:
    [lost] = _filled(60)
    door.client.zrem(RedisDueIndex(door)._keys[0], member_of(_due(lost)))
    assert _mend() == [("due-missing", "added")]
    assert taken(door) == [lost]


def test_what_moved_of_late_is_due_in_a_moment_or_is_not_claimed_is_no_finding(
    door: RedisConnection,
) -> None:
    soon, moved, gone, later = _filled(3, 60, 70, 310)
    RedisDueIndex(door).discard([soon, moved, later])
    Task.objects.unguarded().filter(pk=moved).update(updated_at=database_now())
    Task.objects.unguarded().filter(pk=gone).update(
        status="SUCCESS", due_at=None, updated_at=database_now()
    )
    assert _look() == []


def test_a_set_that_claims_nothing_is_not_asked_for_rows(door: RedisConnection) -> None:
    _filled(60)
    door.client.delete(*RedisDueIndex(door)._keys)
    assert _look() == []


def test_a_change_between_look_and_repair_stands(door: RedisConnection) -> None:
    stale, lost = _filled(50, 60)
    entries = RedisEntries(door)
    due = _due(lost)
    assert entries.drop({member_of(_due(stale)): 5}) == set()
    assert entries.put([due], {}) == set(), "it is known by a member that was not seen"
    assert entries.put([due._replace(shard=9)], {lost: member_of(due)}) == {lost}
    assert entries.members([lost]) == {lost: member_of(due._replace(shard=9))}
    assert entries.number() == 2


def test_the_walk_sees_every_entry_by_pages(
    door: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_entries, "_BATCH", 7)
    now = database_now()
    strangers = [
        Due(now + timedelta(seconds=9), "mail", uuid.UUID(int=number), 0, 1)
        for number in range(1, 1_001)
    ]
    RedisDueIndex(door).add(strangers)
    answers = runner.verify(runner.chosen(["due-entries"]))
    assert {finding.key for finding in answers[0].findings} == {member_of(due) for due in strangers}


def test_entries_of_tasks_that_are_not_here_may_be_anothers_and_stay(door: RedisConnection) -> None:
    [_, theirs] = _filled(50, 60)
    Task.objects.unguarded().filter(pk=theirs).delete()
    answer = durable("verify", "--only", "due-index")
    assert (answer.code, "none, because there is no such task" in answer.out) == (1, True)
    [deed] = runner.repair(runner.verify(runner.chosen(["due-index"])))
    assert (deed.done, "another installation" in deed.left) == ("", True)
    assert theirs in RedisEntries(door).members([theirs])


def test_a_row_that_is_held_between_look_and_repair_gets_no_entry(door: RedisConnection) -> None:
    [held] = _filled(60)
    RedisDueIndex(door).discard([held])
    [missing] = runner.verify(runner.chosen(["due-missing"]))
    assert missing.check.repair is not None
    Task.objects.unguarded().filter(pk=held).update(due_at=datetime(9999, 1, 1, tzinfo=UTC))
    assert missing.check.repair(read_context(), missing.findings) == {}
    assert RedisEntries(door).members([held]) == {}


def test_where_nodes_of_another_region_change_the_rows_nobody_judges_the_set(
    door: RedisConnection,
) -> None:
    [lost] = _filled(60)
    RedisDueIndex(door).discard([lost])
    node = a_node(region="south", stopped=100.0, seen=100.0)
    assert _look() == []
    assert durable("verify", "--only", "due-index").out.count(
        "regions 'south' change the same tasks"
    ) == len(CHECKS)
    Node.objects.filter(pk=node.pk).update(last_seen_at=database_now() - timedelta(seconds=1_000))
    assert _look() == [("due-missing", lost)]


def test_while_redis_is_away_these_checks_say_so_and_the_others_look(
    door: RedisConnection, settings: Any, url: str
) -> None:
    settings.DURABLE_TASKS = {**SHORT, "REDIS_URL": url}
    redis_client.close_idle()
    ids = _filled(60)
    Task.objects.unguarded().filter(pk=ids[0]).update(
        attempts=-1, status="SUCCESS", due_at=None, completed_at=None
    )
    with frozen(url):
        answer = durable("verify", "--format", "json")
    told = {row["check"]: row for row in answer.told["checks"]}
    assert (answer.code, answer.told["complete"]) == (2, False)
    assert ["Redis does not serve (TimeoutError)" in told[name]["error"] for name in CHECKS] == [
        True,
        True,
    ]
    assert told["completion-times"]["findings"] == 1


def test_without_redis_there_is_nothing_to_check(door: RedisConnection, settings: Any) -> None:
    settings.DURABLE_TASKS = dict(SHORT)
    answer = durable("verify", "--only", "due-index")
    assert answer.code == 0
    assert answer.out.count("nothing to check: REDIS_URL is not set") == len(CHECKS)


def test_a_row_whose_shard_is_mended_is_known_in_the_set_by_its_right_one(
    door: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    [row] = _filled(60)
    right = _due(row)
    wrong = right._replace(shard=(right.shard + 1) % 64)
    Task.objects.unguarded().filter(pk=row).update(shard_key=wrong.shard)
    RedisDueIndex(door).add([wrong])
    monkeypatch.setattr(ports, "due", OnCommitNotifier())
    [deed] = runner.repair(runner.verify(runner.chosen(["shard-keys"])))
    assert deed.done == "written"
    assert _due(row) == right
    assert RedisEntries(door).members([row]) == {row: member_of(right)}
