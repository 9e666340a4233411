"""The guard refuses attack URLs, with real sockets, and accepts public ones."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from django_durable_tasks.conf import InvalidSetting, read
from django_durable_tasks.contrib.callbacks.http import CallFailed, CallFailure, Deadline
from django_durable_tasks.exceptions import InvalidTarget
from django_durable_tasks.targets.addresses import (
    address_policy,
    never_by_name,
    parsed_url,
    why_refused,
)
from tests.http_servers import Listener, answer, answering, listening
from tests.unit.targets.sending import a_client, send
from tests.unit.targets.urls import ATTACKS, PUBLIC, PUBLIC_ADDRESS

PORTS = (80, 443, 8080, 8443)


@pytest.fixture
def trap() -> Iterator[Listener]:
    """A local server that must not receive a connection."""
    with listening(answering(answer())) as server:
        yield server


@pytest.mark.parametrize("url", ATTACKS)
def test_an_attack_url_reaches_no_server(url: str, trap: Listener) -> None:
    policy = address_policy((*PORTS, trap.port), ())
    with pytest.raises((InvalidTarget, CallFailed)) as refused:
        send(a_client(policy), url.replace("{port}", str(trap.port)))
    if isinstance(refused.value, CallFailed):
        assert refused.value.failure is CallFailure.UNREACHABLE
        assert refused.value.timings.connect is None, "a connection was made"
    assert trap.connections == 0


def test_there_are_enough_attack_urls() -> None:
    assert len(set(ATTACKS)) >= 80
    assert len(set(PUBLIC)) >= 50


@pytest.mark.parametrize("url", PUBLIC)
def test_a_public_url_is_accepted(url: str) -> None:
    parsed, policy = parsed_url(url), address_policy(PORTS, ())
    policy.check(parsed)
    found = a_client(policy).vetted(parsed, Deadline(1.0))
    assert found == (parsed.literal or ip_address(PUBLIC_ADDRESS),)


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "0177.0.0.1", "localhost"])
def test_forms_that_the_system_resolves_to_loopback_are_refused_after_their_resolution(
    host: str, trap: Listener
) -> None:
    found = {info[4][0] for info in socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM)}
    assert found <= {"127.0.0.1", "::1"}
    with pytest.raises(CallFailed):
        send(a_client(address_policy([trap.port], ()), None), f"http://localhost:{trap.port}/")
    assert all(why_refused(ip_address(address)) for address in found)


def test_the_allow_list_opens_a_host_an_address_and_a_network(trap: Listener) -> None:
    port = trap.port
    for entry, host in (
        (f"loopback.test:{port}", "loopback.test"),
        (f"127.0.0.1:{port}", "127.0.0.1"),
    ):
        assert (
            send(a_client(address_policy(PORTS, [entry])), f"http://{host}:{port}/").status == 200
        )
    for entry in ("127.0.0.0/8", "loopback.test", "127.0.0.1"):
        open_port = address_policy([port], [entry])
        assert send(a_client(open_port), f"http://loopback.test:{port}/").status == 200
    assert trap.connections == 5


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("other.test:{port}", "http://loopback.test:{port}/"),
        ("loopback.test:1", "http://loopback.test:{port}/"),
        ("loopback.test", "http://loopback.test:{port}/"),
        ("127.0.0.0/8", "http://127.0.0.1:{port}/"),
        ("10.0.0.0/8", "http://127.0.0.1:{port}/"),
        ("::ffff:0:0/96", "http://loopback.test:{port}/"),
        ("mapped.test:{port}", "http://mapped.test:{port}/"),
        ("half.test:1", "http://half.test:{port}/"),
    ],
)
def test_an_entry_opens_only_its_own_host_address_and_port(
    entry: str, url: str, trap: Listener
) -> None:
    policy = address_policy(PORTS, [entry.replace("{port}", str(trap.port))])
    with pytest.raises((InvalidTarget, CallFailed)):
        send(a_client(policy), url.replace("{port}", str(trap.port)))
    assert trap.connections == 0


def test_a_name_in_the_allow_list_does_not_open_the_metadata_service() -> None:
    client = a_client(address_policy(PORTS, ["metadata.test"]))
    with pytest.raises(CallFailed, match="could not be reached"):
        send(client, "http://metadata.test/")


def test_a_name_that_changes_its_address_is_resolved_once(trap: Listener) -> None:
    answers = [[PUBLIC_ADDRESS], ["127.0.0.1"], ["127.0.0.1"]]
    asked: list[str] = []

    def rebinding(host: str) -> list[str]:
        asked.append(host)
        return answers[len(asked) - 1]

    client = a_client(address_policy([trap.port], ()), rebinding)
    with pytest.raises(CallFailed) as failed:
        send(client, f"http://rebinding.test:{trap.port}/", timeout=0.5)
    assert failed.value.failure is CallFailure.UNREACHABLE
    assert (asked, trap.connections) == (["rebinding.test"], 0)
    with pytest.raises(CallFailed):
        send(client, f"http://rebinding.test:{trap.port}/")
    assert trap.connections == 0


def test_a_refused_address_a_closed_port_and_an_unknown_name_read_the_same(trap: Listener) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]

    def failing(host: str) -> list[str]:
        if host == "unknown.test":
            raise socket.gaierror(-2, "Name or service not known")
        return ["240.0.0.1"] if host == "unroutable.test" else ["127.0.0.1"]

    opened = address_policy([trap.port, closed], [f"127.0.0.1:{closed}", "240.0.0.0/4"])
    texts = set()
    for host, port in (
        ("refused.test", trap.port),
        ("closed.test", closed),
        ("unknown.test", closed),
        ("unroutable.test", closed),
    ):
        with pytest.raises(CallFailed) as failed:
            send(a_client(opened, failing), f"http://{host}:{port}/", timeout=1.0)
        texts.add((str(failed.value), failed.value.failure))
    assert texts == {("The endpoint could not be reached.", CallFailure.UNREACHABLE)}


def test_each_bad_entry_of_the_allow_list_is_named() -> None:
    for entry in (
        "10.1.0.0/33",
        "http://host",
        "",
        "ho st",
        "host:0",
        "10.1.0.1/8",
        "foo?x",
        "foo#x",
    ):
        with pytest.raises(InvalidTarget, match=r"give a host|network|port"):
            address_policy(PORTS, [entry])


@pytest.mark.parametrize("address", ["fd20:ce::254", "fd00:42::42", "fd00:c1::a9fe:a9fe"])
def test_a_name_never_opens_a_metadata_service_with_a_private_address(address: str) -> None:
    assert never_by_name(ip_address(address))


def test_a_boolean_is_no_port() -> None:
    with pytest.raises(InvalidSetting, match="HTTP_PORTS"):
        read({"HTTP_PORTS": [True]})
