"""``durable verify`` of the shards: each task is in its own shard, and each shard is served."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.verify import runner
from django_durable_tasks.contrib.verify.check import Finding
from django_durable_tasks.models import Node, NodeKind, Task
from django_durable_tasks.states.demand import shard_of
from tests.database.verify.corruptions import DAMAGES
from tests.database.verify.healthy_rows import ago
from tests.factories import a_node, a_task

pytestmark = pytest.mark.django_db


def _find(name: str) -> list[Finding]:
    [answer] = runner.verify(runner.chosen([name]))
    assert not answer.error
    return answer.findings


def test_a_task_in_a_wrong_shard_is_moved_and_an_ended_one_stays() -> None:
    wrong, ended = DAMAGES["shard-keys"](), a_task(Status.SUCCESS)
    Task.objects.unguarded().filter(pk=ended.pk).update(shard_key=99)
    [deed] = runner.repair(runner.verify(runner.chosen(["shard-keys"])))
    assert (deed.finding.key, deed.done) == (wrong, "written")
    assert Task.objects.get(pk=wrong).shard_key == shard_of(wrong)
    assert Task.objects.get(pk=ended.pk).shard_key == 99


@pytest.mark.parametrize(
    "other",
    [
        {"started_at": 0.0},
        {"started_at": 1_000.0, "stopped": 5.0},
        {"started_at": 1_000.0, "shards": list(range(40, 64)), "keeps_to_shards": True},
    ],
)
def test_shards_that_will_be_served_in_a_moment_are_not_unserved(other: dict[str, Any]) -> None:
    DAMAGES["unserved-shards"]()
    assert [finding.found for finding in _find("unserved-shards")] == ["48-63"]
    fields = {**other, "started_at": ago(other["started_at"])}
    a_node(NodeKind.SCHEDULER, region="south", **fields)
    assert _find("unserved-shards") == []


def test_shards_of_a_region_without_schedulers_are_not_reported() -> None:
    DAMAGES["unserved-shards"]()
    Node.objects.filter(region="south").update(last_seen_at=ago(1_000))
    assert _find("unserved-shards") == []


@pytest.mark.parametrize(
    "moved", [{"draining": True}, {"started_at": 0.0}, {"seen": 1_000.0}, {"stopped": 5.0}]
)
def test_an_assignment_is_not_checked_while_nodes_join_or_leave(moved: dict[str, Any]) -> None:
    node = DAMAGES["shard-maps"]()
    [finding] = _find("shard-maps")
    assert (finding.key, finding.found, finding.right.partition(",")[0]) == (
        node,
        "32-39,63",
        "32-63",
    )
    fields: dict[str, Any] = {"region": "north", "started_at": 1_000.0} | moved
    a_node(NodeKind.SCHEDULER, **{**fields, "started_at": ago(fields["started_at"])})
    assert _find("shard-maps") == []


def test_a_scheduler_of_another_release_is_not_checked_by_the_assignment_of_this_one() -> None:
    node = DAMAGES["shard-maps"]()
    assert [finding.key for finding in _find("shard-maps")] == [node]
    Node.objects.filter(pk=node).update(version="0.0.9")
    assert _find("shard-maps") == []
