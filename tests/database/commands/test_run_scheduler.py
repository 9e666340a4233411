"""``manage.py run_scheduler`` validates its options before it connects."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from django_durable_tasks.management.commands.run_scheduler import Command
from django_durable_tasks.models import Node


@pytest.mark.parametrize("wrong", ["64", "5-3", "a", "", "0-31;40"])
def test_shards_that_do_not_exist_are_refused(wrong: str) -> None:
    with pytest.raises(CommandError, match="is no shard or range of shards"):
        call_command("run_scheduler", "--once", "--shards", wrong)


def test_shards_are_parsed_as_ranges_and_numbers() -> None:
    parser = Command().create_parser("manage.py", "run_scheduler")
    assert parser.parse_args(["--shards", "0-2,40"]).shards == {0, 1, 2, 40}
    assert parser.parse_args([]).shards is None


@pytest.mark.django_db(transaction=True)
def test_a_single_round_with_name_and_shards_leaves_no_node_behind() -> None:
    out = StringIO()
    call_command("run_scheduler", "--once", "--node-id", "a", "--shards", "0-31", stdout=out)
    assert "published 0 tasks" in out.getvalue()
    assert not Node.objects.exists()
