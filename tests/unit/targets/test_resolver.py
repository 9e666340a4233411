"""Lookups of host names that hang delay no other tenant."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from threading import Event

import pytest

from django_durable_tasks.contrib.callbacks import http
from django_durable_tasks.contrib.callbacks.http import LookupFailed, Resolver
from tests.http_servers import WAIT
from tests.waiting import until

SHORT = 0.1


class _NameServer:
    """Names that begin with ``slow`` are answered after ``release`` is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.release = Event()

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        if host.startswith("slow"):
            self.release.wait(WAIT)
        return ["192.0.2.1"]


@pytest.fixture
def names() -> Iterator[_NameServer]:
    """A name server whose slow lookups end with the test."""
    found = _NameServer()
    yield found
    found.release.set()


def _duration_of_failure(resolver: Resolver, host: str, tenant_id: int) -> float:
    began = time.monotonic()
    with pytest.raises(LookupFailed):
        resolver.addresses(host, began + SHORT, tenant_id)
    return time.monotonic() - began


def _resolves(resolver: Resolver, host: str, tenant_id: int) -> bool:
    return bool(resolver.addresses(host, time.monotonic() + WAIT, tenant_id))


def test_names_of_one_tenant_that_hang_do_not_block_another_tenant(
    names: _NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "OVERDUE_MAX", 4)
    monkeypatch.setattr(http, "OVERDUE_PER_TENANT", 3)
    resolver = Resolver(names)
    durations = [_duration_of_failure(resolver, f"slow{n}.test", 1) for n in range(6)]
    assert min(durations[:3]) >= SHORT
    assert max(durations[3:]) < SHORT, "the fourth fails at once"
    assert len(names.asked) == 3
    assert _resolves(resolver, "other.test", 2)


def test_all_tenants_together_leave_a_lookup_to_a_tenant_that_has_none(
    names: _NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "OVERDUE_MAX", 2)
    monkeypatch.setattr(http, "OVERDUE_PER_TENANT", 2)
    resolver = Resolver(names)
    for number in range(2):
        _duration_of_failure(resolver, f"slow{number}.test", 1)
    assert _duration_of_failure(resolver, "slow2.test", 2) >= SHORT
    assert _duration_of_failure(resolver, "slow3.test", 2) < SHORT
    assert _resolves(resolver, "other.test", 3)


def test_requests_for_one_name_share_a_lookup_and_a_slow_name_then_fails_at_once(
    names: _NameServer,
) -> None:
    resolver = Resolver(names)
    assert _duration_of_failure(resolver, "slow.test", 1) >= SHORT
    assert _duration_of_failure(resolver, "slow.test", 1) < SHORT
    assert _duration_of_failure(resolver, "slow.test", 2) >= SHORT, "its own deadline counts"
    assert names.asked == ["slow.test"]
    names.release.set()
    until(lambda: not resolver._running, within=WAIT, message="the end of the lookup")
    assert _resolves(resolver, "slow.test", 1), "the name is no longer remembered as slow"


def test_a_slow_name_is_tried_again_after_a_while(
    names: _NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REMEMBERED", 0.0)
    resolver = Resolver(names)
    for _ in range(2):
        assert _duration_of_failure(resolver, "slow.test", 1) >= SHORT


def test_a_thread_that_cannot_start_fails_one_request_only(
    names: _NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    resolver = Resolver(names)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        assert _duration_of_failure(resolver, "a.test", 1) < SHORT
    assert _resolves(resolver, "a.test", 1)
