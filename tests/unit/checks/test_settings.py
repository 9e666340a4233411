"""settings.DURABLE_TASKS is read into one typed object. Invalid values are refused with key, value
and remedy.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_durable_tasks import conf
from django_durable_tasks.conf import InvalidSetting, Settings, read


def test_the_defaults_are_the_documented_ones() -> None:
    settings = read({})
    assert (
        settings.LEASE,
        settings.HEARTBEAT,
        settings.NODE_HEARTBEAT,
        settings.REPUBLISH_AFTER,
    ) == (60, 15, 5, 15)
    assert (settings.POLL, settings.BATCH_SIZE, settings.DATABASE, settings.FAST_PATH) == (
        1,
        500,
        "default",
        True,
    )
    assert (settings.PAYLOAD_MAX_BYTES, settings.RESULT_MAX_BYTES) == (65_536, 65_536)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("LEASE", 0),
        ("LEASE", -1),
        ("LEASE", "60"),
        ("LEASE", None),
        ("LEASE", True),
        ("LEASE", float("nan")),
        ("LEASE", float("inf")),
        ("REPUBLISH_AFTER", timedelta(0)),
        ("BATCH_SIZE", -1),
        ("BATCH_SIZE", 0),
        ("BATCH_SIZE", 1.5),
        ("BATCH_SIZE", True),
        ("PAYLOAD_MAX_BYTES", 262_145),
        ("SECRET_NAMES", "("),
        ("REDIS_URL", "cache:6379"),
        ("REDIS_URL", 6379),
        ("REDIS_URL", "redis://:pa/ss@cache:6379/3"),
        ("REGION", "eu west"),
        ("REGION", None),
        ("LOOKAHEAD", 0),
        ("SECRET_NAMES", 5),
    ],
)
def test_an_invalid_value_is_refused_with_its_key(key: str, value: Any) -> None:
    with pytest.raises(InvalidSetting, match=key):
        read({key: value})


def test_an_unknown_key_is_refused_with_the_nearest_valid_one() -> None:
    with pytest.raises(InvalidSetting, match=r"no key 'HEARTBEET'\. Did you mean 'HEARTBEAT'"):
        read({"HEARTBEET": 1})


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("API", "on if django_durable_tasks.contrib.api is in INSTALLED_APPS"),
        ("METRICS", "on if django_durable_tasks.contrib.metrics is in INSTALLED_APPS"),
        ("NOTIFICATIONS", "on if django_durable_tasks.contrib.notifications is in INSTALLED_APPS"),
        ("LEADER_RENEW", "LEADER_LEASE is renewed four times"),
        ("HTTP_BREAKER_PAUSE", "the pause begins with 30 s"),
    ],
)
def test_a_removed_key_is_refused_with_its_replacement(key: str, remedy: str) -> None:
    with pytest.raises(InvalidSetting, match=f"no key {key!r}. Leave it out: .*{remedy}"):
        read({key: 1})


def test_a_lease_shorter_than_two_heartbeats_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="at least 2 x HEARTBEAT"):
        read({"LEASE": 20, "HEARTBEAT": 11})


def test_durations_may_be_timedeltas_and_the_object_is_frozen() -> None:
    settings = read({"LEASE": timedelta(minutes=2)})
    assert settings.LEASE == 120
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.LEASE = 1  # type: ignore[misc]


def test_every_setting_is_documented_at_its_declaration() -> None:
    assert all(spec.metadata["help"].strip() for spec in dataclasses.fields(Settings))


def test_changed_settings_are_read_again() -> None:
    with override_settings(DURABLE_TASKS={"POLL": 7}):
        assert conf.settings().POLL == 7
    assert conf.settings().POLL == 1


def test_retention_accepts_durations_and_none_by_status() -> None:
    with override_settings(
        DURABLE_TASKS={"RETENTION": {"SUCCESS": timedelta(hours=1), "FAILED": None}}
    ):
        kept = conf.retention()
    assert (kept["SUCCESS"], kept["FAILED"], kept["EXPIRED"]) == (3600, None, 604_800)


@pytest.mark.parametrize("given", [{"RUNNING": 1}, {"SUCCESS": -1}, {"SUCCESS": "week"}])
def test_an_invalid_retention_is_refused(given: dict[str, Any]) -> None:
    with (
        override_settings(DURABLE_TASKS={"RETENTION": given}),
        pytest.raises(InvalidSetting, match="RETENTION"),
    ):
        conf.retention()
