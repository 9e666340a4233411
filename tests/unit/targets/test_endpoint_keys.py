"""The key of an endpoint: whatever a customer writes, one of its servers has one key per scheme and
port.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.option_values import KEY_MAX
from django_durable_tasks.targets.http_request import endpoint_key

CUSTOMER, OTHER, DEFAULT = 7, 8, 1
labels = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,20}[a-z0-9_])?", fullmatch=True)
domains = st.builds(
    "{}.{}".format, labels, st.sampled_from(["example", "com", "io", "co.uk", "com.br", "xn--p1ai"])
)
texts = st.none() | st.text(max_size=50) | st.integers() | st.lists(st.text())
ports = st.sampled_from(["", ":80", ":443", ":8443"])
schemes = st.sampled_from(["http", "https", "HTTPS", "hTtP"])


def _key(url: str, tenant_id: int = CUSTOMER, **arguments: Any) -> str:
    found = endpoint_key(tenant_id, {"url": url, **arguments})
    assert found is not None, url
    return found


@given(
    domain=domains,
    names=st.lists(labels, max_size=4),
    scheme=schemes,
    port=ports,
    endpoint=texts,
    path=st.from_regex(r"(/[a-z]{1,5}){0,3}(\?[a-z]=[a-z]{1,5})?", fullmatch=True),
    is_upper=st.booleans(),
    dot=st.sampled_from(["", "."]),
)
def test_nothing_that_a_customer_writes_divides_its_own_domain(
    domain: str,
    names: list[str],
    scheme: str,
    port: str,
    endpoint: object,
    path: str,
    is_upper: bool,
    dot: str,
) -> None:
    host = ".".join([*names, domain])
    written = (host.upper() if is_upper else host) + dot
    plain = _key(f"{scheme.lower()}://{domain}{port}")
    assert _key(f"{scheme}://{written}{port}{path}", endpoint=endpoint) == plain
    assert len(plain) <= KEY_MAX
    assert _key(f"{scheme}://{host}{port}", OTHER) != plain


@given(network=st.integers(0, 2**64 - 1), hosts=st.lists(st.integers(0, 2**64 - 1), min_size=2))
def test_the_addresses_of_one_network_have_one_key(network: int, hosts: list[int]) -> None:
    addresses = [IPv6Address(network << 64 | host) for host in hosts]
    assert len({_key(f"https://[{address}]/") for address in addresses}) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("https://one.example/", "https://two.example/"),
        ("https://one.co.uk/", "https://two.co.uk/"),
        ("https://one.example/", "http://one.example/"),
        ("https://one.example/", "https://one.example:8443/"),
        ("https://192.0.2.1/", "https://192.0.2.2/"),
        ("https://[2001:db8:0:1::1]/", "https://[2001:db8:0:2::1]/"),
    ],
)
def test_other_receivers_have_other_keys(first: str, second: str) -> None:
    assert _key(first) != _key(second)


def test_the_project_can_divide_a_host() -> None:
    url = "https://hooks.example.com/"
    keys = {_key(url, DEFAULT), _key(url, DEFAULT, endpoint="a"), _key(url, DEFAULT, endpoint="b")}
    assert len(keys) == 3
