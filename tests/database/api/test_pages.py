"""Pages of lists in both directions: over rows with equal times, and if rows are deleted between two
requests.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from django_durable_tasks.contrib.api import tasks
from django_durable_tasks.models import RecurringTask, Task
from tests.database.api.client import ApiClient
from tests.factories import many_tasks
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


def _pages(client: ApiClient, path: str, way: str, cursor: str | None = None) -> Iterator[Any]:
    """Yield the pages that follow each other by this member."""
    joint = "&" if "?" in path else "?"
    while True:
        page = client.get(f"{path}{joint}cursor={cursor}" if cursor else path).json()
        yield page
        cursor = page[way]
        if cursor is None:
            return


def _ids(page: dict[str, Any]) -> list[str]:
    return [one.get("task_id") or one["name"] for one in page["data"]]


def _walk(client: ApiClient, path: str) -> list[list[str]]:
    """Read a list to its end and back to its start; return the pages, which are the same."""
    forward = list(_pages(client, path, "next_cursor"))
    assert forward[0]["prev_cursor"] is None
    back = list(_pages(client, path, "prev_cursor", forward[-1]["prev_cursor"]))
    assert [_ids(page) for page in reversed(back)] == [_ids(page) for page in forward[:-1]]
    assert all(page["has_more"] for page in back)
    return [_ids(page) for page in forward]


@pytest.mark.parametrize("query", ["", "&status=FAILED", "&queue=test", "&status=PENDING"])
def test_tasks_of_one_millisecond_are_read_once_in_both_directions(
    acme: ApiClient, query: str
) -> None:
    rows = [*many_tasks(5, "FAILED", tenant=acme.tenant), *many_tasks(4, tenant=acme.tenant)]
    wanted = sorted(
        (str(row.pk) for row in rows if "status" not in query or row.status in query), reverse=True
    )
    read = _walk(acme, f"/tasks?limit=2{query}")
    assert [key for page in read for key in page] == wanted
    assert max(map(len, read)) == 2


def test_a_list_by_name_is_read_in_both_directions(acme: ApiClient) -> None:
    for name in ("delta", "alpha", "echo", "bravo", "charlie"):
        RecurringTask.objects.upsert(name=name, task=noop, cron="0 2 * * *", tenant=acme.tenant)
    read = _walk(acme, "/recurring-tasks?limit=2")
    assert read == [["alpha", "bravo"], ["charlie", "delta"], ["echo"]]


def test_a_bounded_list_is_read_in_both_directions(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "ROWS_EXAMINED", 4)
    rare = set[str]()
    for _round in range(3):
        many_tasks(5, tenant=acme.tenant)
        rare |= {str(row.pk) for row in many_tasks(2, tenant=acme.tenant, queue="rare")}
    path = "/tasks?limit=1&queue=rare"
    forward = list(_pages(acme, path, "next_cursor"))
    read = [key for page in forward for key in _ids(page)]
    assert read == sorted(rare, reverse=True)
    last = next(page for page in reversed(forward) if page["prev_cursor"])
    back = [
        key for page in _pages(acme, path, "prev_cursor", last["prev_cursor"]) for key in _ids(page)
    ]
    assert rare - set(back) <= set(_ids(last))


def test_the_page_before_deleted_rows_is_the_first_page(acme: ApiClient) -> None:
    rows = sorted(many_tasks(6, tenant=acme.tenant), key=lambda row: row.pk, reverse=True)
    first = acme.get("/tasks?limit=2").json()
    second = acme.get(f"/tasks?limit=2&cursor={first['next_cursor']}").json()
    Task.objects.unguarded().filter(pk__in=[row.pk for row in rows[:2]]).delete()
    before = acme.get(f"/tasks?limit=2&cursor={second['prev_cursor']}").json()
    assert _ids(before) == _ids(second) == [str(row.pk) for row in rows[2:4]]
    assert before["prev_cursor"] is None


def test_an_empty_page_leads_back_to_the_rows_before_it(acme: ApiClient) -> None:
    rows = sorted(many_tasks(4, tenant=acme.tenant), key=lambda row: row.pk, reverse=True)
    first = acme.get("/tasks?limit=2").json()
    Task.objects.unguarded().filter(pk__in=[row.pk for row in rows[2:]]).delete()
    empty = acme.get(f"/tasks?limit=2&cursor={first['next_cursor']}").json()
    assert (empty["data"], empty["next_cursor"]) == ([], None)
    back = acme.get(f"/tasks?limit=2&cursor={empty['prev_cursor']}").json()
    assert _ids(back) == _ids(first)


def test_both_neighbours_are_in_the_link_header(acme: ApiClient) -> None:
    many_tasks(3, tenant=acme.tenant)
    first = acme.get("/tasks?limit=1")
    assert 'rel="next"' in first.headers["Link"]
    assert 'rel="prev"' not in first.headers["Link"]
    second = acme.get(f"/tasks?limit=1&cursor={first.json()['next_cursor']}")
    assert 'rel="next"' in second.headers["Link"]
    assert 'rel="prev"' in second.headers["Link"]


def test_rows_that_appear_and_change_between_pages_repeat_and_hide_no_other(
    acme: ApiClient,
) -> None:
    rows = sorted(many_tasks(6, "FAILED", tenant=acme.tenant), key=lambda row: row.pk, reverse=True)
    first = acme.get("/tasks?limit=2&status=FAILED").json()
    newer = many_tasks(3, "FAILED", tenant=acme.tenant)
    Task.objects.unguarded().filter(pk__in=[rows[0].pk, rows[3].pk]).update(status="SUCCESS")
    path = f"/tasks?limit=2&status=FAILED&cursor={first['next_cursor']}"
    second = acme.get(path).json()
    assert _ids(second) == [str(rows[2].pk), str(rows[4].pk)]
    back = acme.get(f"/tasks?limit=5&status=FAILED&cursor={second['prev_cursor']}").json()
    assert set(_ids(back)) == {str(row.pk) for row in [*newer, rows[1]]}


@pytest.mark.parametrize("place", [0, 10, 16, 17, -1])
def test_a_cursor_of_which_one_character_was_changed_is_refused(
    acme: ApiClient, place: int
) -> None:
    many_tasks(3, tenant=acme.tenant)
    cursor = acme.get("/tasks?limit=1").json()["next_cursor"]
    content = list(base64.urlsafe_b64decode(f"{cursor}==").decode())
    content[place] = "b" if content[place] == "a" else "a"
    forged = base64.urlsafe_b64encode("".join(content).encode()).decode().rstrip("=")
    assert acme.get(f"/tasks?cursor={forged}").status_code == 400


def test_a_cursor_belongs_to_one_list(acme: ApiClient) -> None:
    many_tasks(3, tenant=acme.tenant)
    cursor = acme.get("/tasks?limit=1").json()["next_cursor"]
    task = acme.get("/tasks").json()["data"][0]["task_id"]
    for path in ("/dead-letters", "/workflows", f"/tasks/{task}/executions"):
        assert acme.get(f"{path}?cursor={cursor}").status_code == 400
