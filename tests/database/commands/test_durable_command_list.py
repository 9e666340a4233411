"""``durable list`` pages through tasks, dead letters, queues and nodes, and masks secrets."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.models import DeadLetter, NodeKind
from tests.database.commands.durable_command import durable, json_of
from tests.factories import a_dead_letter, a_node, a_paused_queue, a_task, a_tenant, many_tasks

pytestmark = pytest.mark.django_db


def _ids(*words: object) -> list[Any]:
    return [row["id"] for row in json_of("list", *words)]


def test_tasks_are_listed_newest_first() -> None:
    rows = many_tasks(3)
    assert _ids() == [str(row.pk) for row in reversed(rows)]
    assert _ids("tasks", "--limit", 2) == [str(row.pk) for row in reversed(rows[1:])]


def test_the_next_page_continues_after_the_last_id() -> None:
    rows = many_tasks(5)
    answer = durable("list", "--limit", 2, "--format", "json")
    last = answer.data[-1]["id"]
    assert f"--after {last}" in answer.err
    assert _ids("--limit", 10, "--after", last) == [str(row.pk) for row in reversed(rows[:3])]


def test_tasks_are_narrowed_by_each_filter() -> None:
    tenant = a_tenant()
    wanted = a_task(Status.CANCELLED, queue="mail", name="shop.tasks.mail", tenant=tenant)
    a_task()
    for words in (
        ("--status", "CANCELLED"),
        ("--queue", "mail"),
        ("--name", "shop.tasks.mail"),
        ("--tenant", tenant.slug),
    ):
        assert _ids(*words) == [str(wanted.pk)]
    keyed = a_task(key="post-42")
    assert _ids("--key", "post-42") == [str(keyed.pk)]
    assert _ids("--status", "EXPIRED") == []


def test_a_table_is_aligned_and_has_one_line_per_task() -> None:
    many_tasks(2, last_error="one\ntwo")
    head, *lines = durable("list").out.splitlines()
    assert head.split()[:4] == ["ID", "STATUS", "QUEUE", "NAME"]
    assert [line.index("PENDING") for line in lines] == [head.index("STATUS")] * 2
    assert "\x1b" not in head + "".join(lines)
    assert durable("list", "--status", "EXPIRED").out.strip() == "nothing"


def test_open_dead_letters_are_listed_and_closed_ones_on_request() -> None:
    row = a_task(Status.FAILED, queue="mail", name="shop.tasks.mail")
    closed = a_dead_letter(row, open=False, fingerprint="f" * 16)
    opened = DeadLetter.objects.open().get()
    assert _ids("dead-letters") == [opened.pk]
    assert _ids("dead-letters", "--all") == [closed.pk, opened.pk]
    states = [row["state"] for row in json_of("list", "dead-letters", "--all")]
    assert states == ["closed", "open"]
    assert _ids("dead-letters", "--all", "--fingerprint", "f" * 16) == [closed.pk]
    assert _ids("dead-letters", "--queue", "mail", "--name", "shop.tasks.mail") == [opened.pk]
    assert _ids("dead-letters", "--queue", "other") == []
    assert _ids("dead-letters", "--all", "--after", closed.pk) == [opened.pk]


def test_queues_are_listed_with_their_depth_and_their_pause() -> None:
    many_tasks(2, queue="mail")
    a_paused_queue("reports", reason="month's end")
    a_node(queues=["mail"], concurrency=3)
    rows = {row["queue"]: row for row in json_of("list", "queues")}
    assert (rows["mail"]["due"], rows["mail"]["concurrency"]) == (2, 3)
    assert (rows["reports"]["paused_by"], rows["reports"]["reason"]) == ("anna", "month's end")
    assert [row["queue"] for row in json_of("list", "queues", "--queue", "mail")] == ["mail"]


def test_live_nodes_are_listed_and_departed_ones_on_request() -> None:
    here, gone = a_node(NodeKind.SCHEDULER), a_node(seen=90, stopped=60)
    assert _ids("nodes") == [str(here.pk)]
    assert _ids("nodes", "--all") == [str(here.pk), str(gone.pk)]
