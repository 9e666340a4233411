"""The pages show and read instants in the same zone, whatever USE_TZ and TIME_ZONE of the project
are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import models
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from django_durable_tasks.admin.recurring_tasks import OPERATIONS
from django_durable_tasks.contrib.api.models import ApiKey
from django_durable_tasks.models import RecurringTask, SchedulerLease
from django_durable_tasks.operations import ArgumentType, Operation, OperationResult
from django_durable_tasks.tasks import claim
from tests.database.admin.full_tenant import MODEL_ADMINS, a_full_tenant, pages_of, shared_rows
from tests.database.admin.site import list_of, page_of
from tests.database.recurring.schedules import a_schedule
from tests.factories import a_tenant
from tests.repetitions import repetitions

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("open_notifications")]

SITE, SCHEDULE = "Europe/Berlin", "America/New_York"
# The clocks of both zones are set in these nights, so that times are repeated or missing.
NIGHTS = (
    datetime(2031, 3, 9),
    datetime(2031, 3, 30),
    datetime(2031, 10, 26),
    datetime(2031, 11, 2),
)
wall_times = st.builds(
    lambda night, minutes: night + timedelta(minutes=minutes),
    st.sampled_from(NIGHTS),
    st.integers(0, 6 * 60),
)
few = examples(
    max_examples=repetitions(5),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(params=[True, False], ids=["USE_TZ", "no USE_TZ"])
def project(request: pytest.FixtureRequest, settings: Any) -> None:
    """A project in Berlin with and without USE_TZ."""
    settings.TIME_ZONE = SITE
    settings.USE_TZ = request.param


def _instants(wall_time: datetime, zone: str) -> set[datetime]:
    """Return the instants of a wall time; two if it is repeated or missing."""
    folds = (wall_time.replace(tzinfo=ZoneInfo(zone), fold=fold) for fold in (0, 1))
    return {one.astimezone(ZoneInfo("UTC")) for one in folds}


def _pages() -> Iterator[str]:
    rows = {**a_full_tenant("acme"), **shared_rows()}
    rows["recurringtask"].pause("a move", until=datetime.now(ZoneInfo(SITE)) + timedelta(days=9))
    SchedulerLease.objects.update(holder=rows["node"].pk)
    claim.count_misrouted("mails", "cards")
    yield reverse("admin:django_durable_tasks_overview")
    yield reverse("admin:durable_tasks_metrics_metricminute_changelist")
    for model_admin in MODEL_ADMINS:
        yield list_of(str(model_admin.opts.model_name))
        yield f"{list_of(str(model_admin.opts.model_name))}add/"
        yield from pages_of(model_admin, rows[str(model_admin.opts.model_name)])


def _minutes(page: Any) -> list[int]:
    """Return the times of day that the page shows, as minutes."""
    found = re.findall(r"\b([012]\d):([0-5]\d)(?::[0-5]\d)?\b", page.content.decode())
    return [60 * int(hour) + int(minute) for hour, minute in found]


def test_each_page_shows_the_same_times_with_and_without_use_tz(ann: Client, settings: Any) -> None:
    settings.TIME_ZONE = SITE
    for address in list(_pages()):
        shown = []
        for settings.USE_TZ in (True, False):
            page = ann.get(address)
            shown.append((page.status_code, [] if page.streaming else _minutes(page)))
        (status, times), (without, others) = shown
        assert (status, len(times)) == (without, len(others)), address
        # The pages were opened one after the other.
        for at, other in zip(times, others, strict=True):
            assert (other - at) % (24 * 60) <= 2, address


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_an_operation_gets_the_instants_of_the_wall_times_of_the_schedule(
    ann: Client, project: None, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    names = [one.name for one in operation.fields if one.kind == ArgumentType.INSTANT]
    row = a_schedule(timezone=SCHEDULE)
    address = reverse("admin:django_durable_tasks_recurringtask_do", args=[row.pk, operation.name])
    form = ann.get(address).context.get("form")
    filled = {field.name: field.value() or "" for field in form} if form is not None else {}
    got: list[dict[str, Any]] = []

    def performed(_operation: Operation, _subject: Any, **values: Any) -> OperationResult:
        got.append(values)
        return OperationResult({})

    monkeypatch.setattr(type(operation), "perform", performed)

    @few
    @given(wall_times)
    def reads(at: datetime) -> None:
        expected = _instants(at, SCHEDULE)
        sent = {
            **filled,
            "reason": "x",
            "action": "MOVE",
            **dict.fromkeys(names, f"{at:%Y-%m-%d %H:%M}"),
        }
        got.clear()
        page = ann.post(address, sent)
        if len(expected) == 1:
            assert [{got[0][name]} for name in names] == [expected] * len(names)
        else:
            assert set(names) <= set(page.context["form"].errors)
            assert not got
            for one in expected:
                with_offset = one.astimezone(ZoneInfo(SCHEDULE)).isoformat()
                ann.post(address, {**sent, **dict.fromkeys(names, with_offset)})
                assert [got[-1][name] for name in names] == [one] * len(names)

    if names:
        reads()


def test_a_schedule_keeps_its_bounds_when_its_form_is_saved_again(
    ann: Client, project: None
) -> None:
    row = a_schedule(timezone=SCHEDULE)
    address = reverse("admin:django_durable_tasks_recurringtask_edit", args=[row.pk])

    def sent() -> dict[str, Any]:
        form = ann.get(address).context["form"]
        shown = {name: form[name].value() for name in form.fields}
        return {name: "" if value is None else value for name, value in shown.items()}

    @few
    @given(wall_times)
    def keeps(at: datetime) -> None:
        (expected, *others) = _instants(at, SCHEDULE)
        text = (
            expected.astimezone(ZoneInfo(SCHEDULE)).isoformat()
            if others
            else f"{at:%Y-%m-%d %H:%M}"
        )
        for again in (False, True):
            values = {} if again else {"end_time": text}
            assert ann.post(address, {**sent(), **values}).status_code == 302
            assert RecurringTask.objects.get(pk=row.pk).end_time == expected

    keeps()


def test_why_is_answered_for_the_instant_of_the_wall_time(ann: Client, project: None) -> None:
    row = a_schedule(timezone=SCHEDULE)

    @few
    @given(wall_times)
    def answers(at: datetime) -> None:
        expected = _instants(at, SCHEDULE)
        page = ann.get(page_of(row), {"at": f"{at:%Y-%m-%d %H:%M}"})
        texts = [row.explain(one) for one in expected] if len(expected) == 1 else [""]
        assert [page.context["answer"]] == texts
        assert bool(page.context["why"].errors) == (len(expected) > 1)

    answers()


def test_a_stock_form_reads_and_shows_the_instant_of_the_wall_time(
    ann: Client, project: None
) -> None:
    tenant = a_tenant()
    address = f"{list_of('apikey')}add/"

    @few
    @given(wall_times)
    def reads(at: datetime) -> None:
        ApiKey.objects.unguarded().all().delete()
        expected = _instants(at, SITE)
        values = {"tenant": tenant.pk, "name": "k", "scopes": ["read"], "mode": "live"}
        date_and_time = {"expires_at_0": f"{at:%Y-%m-%d}", "expires_at_1": f"{at:%H:%M:%S}"}
        answer = ann.post(address, {**values, **date_and_time})
        assert answer.status_code == (302 if len(expected) == 1 else 200)
        keys = ApiKey.objects.all()
        assert [{key.expires_at} for key in keys] == ([expected] if len(expected) == 1 else [])
        for key in keys:
            assert f"{at:%Y-%m-%d %H:%M:%S}" in ann.get(page_of(key)).content.decode()

    reads()


def test_each_column_of_a_stock_form_is_shown_as_it_is_read(
    project: None, rf: Any, ann: Client
) -> None:
    wall = datetime(2031, 7, 1, 12, 30)
    (expected,) = _instants(wall, SITE)
    for model_admin in MODEL_ADMINS:
        for column in model_admin.opts.concrete_fields:
            if isinstance(column, models.DateTimeField) and column.editable:
                field: Any = model_admin.formfield_for_dbfield(column, rf.get("/"))
                assert field.clean(["2031-07-01", "12:30:00"]) == expected
                shown = field.widget.decompress(field.prepare_value(expected))
                assert shown == [wall.date(), wall.time()]
