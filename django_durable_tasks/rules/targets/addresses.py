"""The table of addresses that requests to outside servers may reach.

The table is our own, because ``ipaddress.is_global`` differs between Python versions and accepts
addresses that lead into private networks: 6to4, IPv4-compatible and site-local addresses, and the
metadata addresses of some clouds. IPv6 is closed by default: only allocated global unicast space
is accepted.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_METADATA = {
    "169.254.0.0/16": "link-local, and the metadata service of most clouds",
    "168.63.129.16/32": "the platform service of Azure",
    "100.100.100.200/32": "the metadata service of Alibaba Cloud",
    "192.0.0.192/32": "the metadata service of Oracle Cloud",
    "fd00:ec2::/32": "the metadata service of AWS",
    "fd00:42::42/128": "the metadata service of Scaleway",
    "fd00:c1::a9fe:a9fe/128": "the metadata service of Oracle Cloud",
    "fd20:ce::254/128": "the metadata service of Google Cloud",
    "fe80::/10": "link-local",
}
_REFUSED_V4 = {
    "0.0.0.0/8": "this host",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared address space of carriers",
    "127.0.0.0/8": "loopback",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved for protocols",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "AS112",
    "192.52.193.0/24": "automatic multicast tunnels",
    "192.88.99.0/24": "6to4 relay",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "AS112",
    "198.18.0.0/15": "benchmarks",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
_REFUSED_V6 = {
    "2001::/23": "reserved for protocols, Teredo included",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "2620:4f:8000::/48": "AS112",
    "3fff::/20": "documentation",
}
_NAMED_V6 = {
    "::/128": "this host",
    "::1/128": "loopback",
    "::ffff:0:0/96": "an IPv4 address in IPv6 form",
    "::/96": "an IPv4 address in IPv6 form",
    "64:ff9b::/96": "NAT64",
    "64:ff9b:1::/48": "NAT64",
    "fc00::/7": "private",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
}
_GLOBAL_V6 = IPv6Network("2000::/3")
_OUTSIDE_V6 = "outside of global unicast"


def _table(*parts: dict[str, str]) -> tuple[tuple[Network, str], ...]:
    return tuple((ip_network(text), why) for part in parts for text, why in part.items())


_REFUSED = _table(_METADATA, _REFUSED_V4, _REFUSED_V6, _NAMED_V6)
_NEVER_BY_NAME = _table(
    _METADATA,
    dict.fromkeys(("0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"), ""),
    dict.fromkeys(("::/128", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48"), ""),
    dict.fromkeys(("2001::/32", "2002::/16", "ff00::/8"), ""),
)
_LOOPBACK_V6, _COMPATIBLE_V6 = IPv6Address("::1"), IPv6Network("::/96")


def why_refused(address: Address) -> str | None:
    """Return why requests to this address are refused; None if it is a public address."""
    for network, why in _REFUSED:
        if address.version == network.version and address in network:
            return why
    if isinstance(address, IPv6Address) and address not in _GLOBAL_V6:
        return _OUTSIDE_V6
    return None


def never_by_name(address: Address) -> bool:
    """Return whether a host name of the allow list may not resolve to this address.

    These are link-local addresses, the services of cloud platforms, multicast, and the IPv6 forms
    of IPv4 addresses. The owner of a name can point it anywhere, so that only a network in the
    allow list opens them.
    """
    if address in _COMPATIBLE_V6 and address != _LOOPBACK_V6:
        return True
    return any(
        address.version == network.version and address in network for network, _ in _NEVER_BY_NAME
    )


def parsed_address(text: str) -> Address | None:
    """Return the address in its only accepted spelling (dotted decimal, or IPv6 without a zone);
    None if the text is not an address.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return None if isinstance(address, IPv6Address) and address.scope_id is not None else address
