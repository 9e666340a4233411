"""An invalid URL or choice is answered without a database error."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from django_durable_tasks.choices import Status
from django_durable_tasks.models import DeadLetter, Limit, Task
from tests.database.admin.full_tenant import MODEL_ADMINS, pages_of
from tests.database.admin.site import list_of, messages_of, operator
from tests.factories import a_task
from tests.repetitions import repetitions

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("open_notifications")]

ODD = ("\x00", "é" * 300, "9" * 40, "x" * 5_000, "-1", "' OR 1=1", "%", "____")[
    : repetitions(8, least=3)
]
each_model = pytest.mark.parametrize(
    "model_admin", MODEL_ADMINS, ids=lambda one: one.opts.model_name
)


@each_model
@pytest.mark.usefixtures("full_rows")
def test_a_list_answers_any_parameters_and_finds_no_row_of_an_odd_value(
    ann: Client, model_admin: Any
) -> None:
    address = list_of(str(model_admin.opts.model_name))
    own = {one.parameter_name for one in model_admin.list_filter if hasattr(one, "parameter_name")}
    own |= {"q"} if model_admin.search_fields else set()
    fields = {f"{one}__exact" for one in model_admin.list_filter if isinstance(one, str)}
    for parameter in own | fields | set(model_admin.lookups_allowed) | {"o", "p", "all", "_facets"}:
        for value in ODD:
            answer = ann.get(address, {parameter: value})
            if parameter in own:
                assert answer.status_code == 200, (parameter, value)
                assert not answer.context["cl"].result_count, (parameter, value)
            assert answer.status_code in (200, 302, 400), (parameter, value)


@each_model
def test_a_page_of_an_impossible_id_is_answered(ann: Client, model_admin: Any) -> None:
    label = f"{model_admin.opts.app_label}_{model_admin.opts.model_name}"
    for page in ("change", "history", "delete"):
        for key in ODD:
            address = reverse(f"admin:{label}_{page}", args=[quote(key)])
            assert ann.get(address, follow=True).status_code in (200, 403, 404), address


@each_model
def test_an_unknown_row_or_operation_or_format_is_not_found(
    ann: Client, model_admin: Any, full_rows: dict[str, Any]
) -> None:
    row = full_rows[str(model_admin.opts.model_name)]
    for page in pages_of(model_admin, row):
        if "/do/" in page or page.endswith((".svg", "/edit/", "/replay/", "/remove/")):
            unknown = page.replace(
                str(row.pk), str(uuid.UUID(int=7) if len(str(row.pk)) > 20 else 999_999)
            )
            assert ann.get(unknown).status_code == 404, unknown
        if "/do/" in page:
            assert ann.get(f"{page.rsplit('/', 2)[0]}/explode/").status_code == 404
        if page.endswith(".svg"):
            assert ann.get(page.replace(".svg", ".exe")).status_code == 404


@pytest.mark.parametrize(
    "model_admin",
    [model_admin for model_admin in MODEL_ADMINS if model_admin.actions is not None],
    ids=lambda one: one.opts.model_name,
)
@pytest.mark.parametrize("key", ["zz", "\x00", "9" * 30])
def test_an_action_on_an_impossible_id_changes_nothing(model_admin: Any, key: str) -> None:
    ann, name = operator("bob"), str(model_admin.opts.model_name)
    a_task(Status.FAILED)
    a_task()
    Limit.objects.create(scope="queue:mail", max_concurrency=1)
    before = _numbers()
    request = ann.get(list_of(name)).wsgi_request
    for action in model_admin.get_actions(request):
        for chosen in ([key], [key, str(Task.objects.all()[0].pk)]):
            answer = ann.post(list_of(name), {"action": action, "_selected_action": chosen})
            assert answer.status_code in (200, 302), action
            refused = messages_of(answer)[-1:] == [
                "Nothing was changed: the selection contains an invalid id."
            ]
            assert refused or (name == "limit" and "\x00" not in key), action
    assert _numbers() == before


def _numbers() -> tuple[int, int, int]:
    return Task.objects.count(), DeadLetter.objects.open().count(), Limit.objects.count()
