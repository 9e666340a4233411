"""The calling forms for coroutines do the same and do not block the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from celery.exceptions import TimeoutError as CeleryTimeoutError

from django_durable_tasks import Workflow
from django_durable_tasks.models import Task
from django_durable_tasks.testing import adrain
from tests.project import kit

pytestmark = pytest.mark.django_db(transaction=True)


def test_each_form_creates_its_task_and_the_result_is_awaited() -> None:
    async def act() -> Any:
        task = await kit.create_group_once.aschedule("a")
        result = await kit.shows.adelay({"n": 1})
        other = await kit.create_group_once.using(queue="other").adelay("b")
        await kit.create_group_once.using(queue="other").aschedule("c")
        ids = await kit.create_group_once.aschedule_many([("d",), ("e",)])
        workflow = Workflow("groups")
        workflow.add(kit.create_group_once, "f")
        run = await workflow.astart()
        with pytest.raises(CeleryTimeoutError):
            await other.aget(timeout=0.05)
        value, _ = await asyncio.gather(result.aget(timeout=60), adrain())
        return task, ids, run, value

    task, ids, run, value = async_to_sync(act)()
    assert value["value"] == {"n": 1}
    assert Task.objects.filter(status="SUCCESS").count() == 7
    assert Task.objects.filter(pk__in=[task.pk, *ids]).count() == 3
    run.refresh_from_db()
    assert run.status == "SUCCESS"
