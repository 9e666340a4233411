"""The decoder of jsonb on dedicated connections returns what psycopg's returns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_durable_tasks.store import connections
from django_durable_tasks.store.tables import read

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]
_VALUES: list[Any] = [
    *([], {}, None, True, False, 0, -7, 1.5, 10**30, "", 'ä\u2028\U0001f600\\"\n', " 1 "),
    {"a": [1, {"b": None}], "ä": "x" * 5_000},
]


@pytest.mark.parametrize("value", _VALUES, ids=lambda value: repr(value)[:20])
def test_a_value_is_decoded_like_by_the_standard_library(value: Any) -> None:
    with connections.dedicated_connection():
        ((found,),) = read("SELECT %(value)s::jsonb", {"value": json.dumps(value)}, binary=True)
    assert (found, type(found)) == (value, type(value))


def test_results_in_text_are_still_text_for_django() -> None:
    with connections.dedicated_connection():
        ((found,),) = read("SELECT '[1, 2]'::jsonb", {})
    assert found == "[1, 2]"


def test_dedicated_connections_use_the_decoder() -> None:
    with connections.dedicated_connection(), connections.cursor(binary=True) as cursor:
        loader = cursor.adapters.get_loader(3802, 1)
    assert loader.__name__ == "QuickJsonbLoader"
