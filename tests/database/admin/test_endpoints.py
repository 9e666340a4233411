"""The pages of endpoints show the state of their breakers."""

from datetime import timedelta

import pytest

from django_durable_tasks.contrib.callbacks import endpoints
from django_durable_tasks.contrib.callbacks.models import Endpoint
from django_durable_tasks.store.clock import database_now
from tests.database.admin.site import list_of, page_of, staff

pytestmark = pytest.mark.django_db


def test_an_endpoint_is_shown_as_closed_open_and_probing() -> None:
    reader = staff("view_endpoint")
    endpoints.failed("https://example.com", 1, "The endpoint answered <503>.")
    row = Endpoint.objects.get()
    for until, state in (
        (None, "closed"),
        (database_now() + timedelta(seconds=60), "open"),
        (database_now() - timedelta(seconds=1), "probing"),
    ):
        Endpoint.objects.unguarded().update(open_until=until)
        for address in (list_of("endpoint"), page_of(row)):
            page = reader.get(address).content.decode()
            assert f">{state}<" in page, (address, state)
            assert "answered &lt;503&gt;." in page
    assert staff("view_task").get(list_of("endpoint")).status_code == 403
