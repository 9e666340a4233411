"""A configuration is repeated by its seed or by its text, and four campaigns of one seed differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.__main__ import _campaigns, _options
from tests.chaos.configuration import CELERY, SLOTS, Configuration, NotAConfiguration, drawn, seeds
from tests.chaos.plan import SETTINGS, Plan

SEEDS = st.text("0123456789abcdef-", min_size=1, max_size=8)
SECONDS = st.sampled_from([60.0, 120.0, 600.0])


@given(SEEDS, SECONDS)
def test_a_seed_draws_the_same_configuration_each_time(seed: str, seconds: float) -> None:
    assert drawn(seed, seconds) == drawn(seed, seconds)


@given(SEEDS, SECONDS)
def test_a_configuration_is_repeated_by_its_text_in_a_shell_without_quotes(
    seed: str, seconds: float
) -> None:
    configuration = drawn(seed, seconds)
    assert Configuration().but(configuration.in_words()) == configuration
    assert Configuration.of(configuration.as_text()) == configuration
    assert " " not in configuration.in_words()


@given(SEEDS)
def test_four_campaigns_have_each_kind_of_server_and_each_obstacle(seed: str) -> None:
    four = [drawn(one, 600) for one in seeds(seed, 4)]
    databases = [one.database for one in four]
    assert sorted(databases) == ["mariadb", "postgresql", "postgresql", "sqlite"]
    assert {one.broker for one in four if one.database != "sqlite"} == {"redis", "rabbitmq"}
    assert sum(bool(one.global_limit) for one in four) == 2
    assert sum(bool(one.removed) for one in four) == 2
    ordinary = [one for one in four if not one.global_limit and not one.removed]
    assert [(one.backlog, one.backlog_seconds) for one in ordinary if one.capacity > 1] in (
        [(2_500, 0.1)],
        [],
    )
    prefork = [one for one in four if one.database == "postgresql" and one.pool == "prefork"]
    assert any(one.driver == "psycopg" and one.idle_timeout for one in prefork)


@given(SEEDS, SECONDS)
def test_a_drawn_value_is_possible_beside_the_others(seed: str, seconds: float) -> None:
    one = drawn(seed, seconds)
    assert one.slots in SLOTS[one.pool]
    assert one.capacity > 1
    assert set(one.celery) <= CELERY.keys()
    assert one.driver == "psycopg" or (one.database == "postgresql" and one.pool != "gevent")
    assert one.connections != "pool" or (one.database == "postgresql" and one.driver == "psycopg")
    assert one.database != "sqlite" or not (one.idle_timeout or one.language or one.isolation)
    assert one.short == (seconds < 300)


def test_values_of_a_text_replace_drawn_ones() -> None:
    one = drawn("7", 600).but("pool=threads,slots=8,celery=,published_first=True,idle_timeout=2")
    assert (one.pool, one.slots, one.celery, one.published_first, one.idle_timeout) == (
        "threads",
        8,
        (),
        True,
        2.0,
    )


@pytest.mark.parametrize("text", ["pools=threads", "slots", "slots=two", "short=yes"])
def test_a_text_that_names_no_value_is_refused(text: str) -> None:
    with pytest.raises(NotAConfiguration):
        Configuration().but(text)
    with pytest.raises(SystemExit):
        list(_campaigns(_options(["--configuration", text]), set()))


def test_each_campaign_is_printed_with_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plans = list(_campaigns(_options(["--seed", "7", "--campaigns", "4"]), set()))
    assert [plan.seed for plan in plans] == ["7-1", "7-2", "7-3", "7-4"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    for plan, line in zip(plans, lines, strict=True):
        arguments = line.partition('ARGS="')[2].rstrip('"').split()
        (again,) = _campaigns(_options(arguments), set())
        assert again == plan


def test_a_long_campaign_has_the_default_settings_and_a_short_one_shortened_leases() -> None:
    plan = Plan(broker="redis", seed="1", faults=(), configuration=drawn("1", 600))
    assert (plan.settings, plan.grace) == ({}, 30.0)
    assert Plan.of(plan.as_text()) == plan
    short = Plan(broker="redis", seed="1", faults=(), configuration=drawn("1", 60))
    assert (short.settings, short.grace) == (SETTINGS, 10.0)
