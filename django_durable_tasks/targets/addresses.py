"""Which URLs, hosts, ports and addresses requests to outside servers may reach."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote

from django_durable_tasks.exceptions import InvalidTarget, about

# The table of addresses that requests to outside servers may reach.
#
# The table is our own, because ``ipaddress.is_global`` differs between Python versions and accepts
# addresses that lead into private networks: 6to4, IPv4-compatible and site-local addresses, and
# the metadata addresses of some clouds. IPv6 is closed by default: only allocated global unicast
# space is accepted.


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


def _table(*tables: dict[str, str]) -> tuple[tuple[Network, str], ...]:
    return tuple((ip_network(text), why) for table in tables for text, why in table.items())


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


# Parses the URL of an outside server, strictly: two programs must not read it differently.
#
# The text is split here, by characters, and the parts are given to the client as values. No other
# parser reads the URL afterwards.


URL_MAX = 2_048
_PORTS = {"http": 80, "https": 443}
# Bits. The smallest network that providers assign to a customer.
_IPV6_PREFIX = 64
# Suffixes of registries below which everybody can register a domain.
# fmt: off
_SHARED_SUFFIXES = frozenset(
    {
        "ac.jp", "ac.uk", "co.id", "co.il", "co.in", "co.jp", "co.ke", "co.kr", "co.nz",
        "co.th", "co.uk", "co.za", "com.ar", "com.au", "com.bd", "com.br", "com.cn",
        "com.co", "com.eg", "com.hk", "com.mx", "com.my", "com.ng", "com.pe", "com.ph",
        "com.pk", "com.pl", "com.sa", "com.sg", "com.tr", "com.tw", "com.ua", "com.vn",
        "edu.au", "gov.au", "gov.br", "gov.in", "gov.uk", "go.jp", "me.uk", "ne.jp",
        "net.au", "net.br", "nhs.uk", "or.jp", "or.kr", "org.au", "org.br", "org.il",
        "org.nz", "org.uk", "org.za",
    }
)
# fmt: on
_URL = re.compile(r"(https?)://([^/?#]*)([^#]*)(?:#.*)?", re.IGNORECASE | re.DOTALL)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@%\\]+)(?::([0-9]*))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f\\]")
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetUrl:
    """A parsed URL. ``host`` is in lower case, without brackets and without a final dot; ``path``
    is the path with the query, as it is sent.
    """

    scheme: str
    host: str
    port: int
    path: str
    literal: Address | None = None

    @property
    def authority(self) -> str:
        """The value of the Host header: without the port if it is that of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.authority}"

    @property
    def domain(self) -> str:
        """The part of the host that one owner controls: a domain of two labels, three below
        ``_SHARED_SUFFIXES``; an IPv4 address; a /64 network of IPv6.

        No list of all public suffixes is needed, because a suffix that is missing here only makes
        more hosts count as one. The list contains no domain that one customer could own.
        """
        if isinstance(self.literal, IPv6Address):
            return str(IPv6Network((self.literal, _IPV6_PREFIX), strict=False).network_address)
        if self.literal is not None:
            return self.host
        labels = self.host.split(".")
        is_shared = ".".join(labels[-2:]) in _SHARED_SUFFIXES
        return ".".join(labels[-3:] if is_shared else labels[-2:])

    def with_host(self, host: str) -> TargetUrl:
        """Return the URL with another host."""
        return replace(self, host=host)


@about("url")
def parsed_url(text: object) -> TargetUrl:
    """Return the parts of an http or https URL; raises InvalidTarget."""
    if not isinstance(text, str) or not text:
        raise InvalidTarget.of("url", text, "give an http:// or https:// URL as a string.")
    if len(text) > URL_MAX:
        raise InvalidTarget(
            f"url has {len(text):,} characters, at most {URL_MAX:,} are allowed. Put the data into"
            " the body."
        )
    if _UNPRINTABLE.search(text):
        raise InvalidTarget(
            "url contains a space, a control character or a backslash: percent-encode it."
        )
    match = _URL.fullmatch(text)
    if match is None:
        raise InvalidTarget("url must begin with http:// or https://.")
    scheme, authority, path_text = match[1].lower(), match[2], match[3]
    if "@" in authority:
        raise InvalidTarget(
            "url contains a user name or a password: send them in the header Authorization."
        )
    authority_match = _AUTHORITY.fullmatch(authority)
    if authority_match is None:
        raise InvalidTarget(f"url: {authority[:100]!r} is not a host name with an optional port.")
    name, port = authority_match[1], authority_match[2] or str(_PORTS[scheme])
    if name.startswith("["):
        literal = parsed_address(name[1:-1])
        if literal is None or literal.version != 6:
            raise InvalidTarget(f"url: {name[:100]} is not an IPv6 address.")
        host = str(literal)
    else:
        host = name.lower().removesuffix(".")
        if not host.isascii():
            raise InvalidTarget("url: write the host name in its ASCII form (xn--...).")
        labels, literal = host.split("."), parsed_address(host)
        if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
            raise InvalidTarget(f"url: {name[:100]!r} is not a host name.")
        if _NUMERIC.fullmatch(labels[-1]) and literal is None:
            raise InvalidTarget(
                f"url: {name[:100]!r} is a number: write an IPv4 address as four decimal numbers."
            )
    if len(port) > 5 or not 0 < int(port) < 65_536:
        raise InvalidTarget(f"url: the port {port[:20]} is not between 1 and 65535.")
    try:
        path = quote(path_text if path_text.startswith("/") else f"/{path_text}", safe=_SAFE)
    except UnicodeEncodeError:
        raise InvalidTarget("url contains a lone surrogate, which is not UTF-8.") from None
    return TargetUrl(scheme=scheme, host=host, port=int(port), path=path, literal=literal)


# The hosts, ports and addresses that requests to outside servers may reach: HTTP_PORTS and
# HTTP_ALLOW.


_HOST_PORT = re.compile(r"(\[[^\]]+\]|[^:]+):([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowEntry:
    """An entry of HTTP_ALLOW: a host name or a network, and the only port it is for (None: the
    ports of HTTP_PORTS).
    """

    host: str | None = None
    network: Network | None = None
    port: int | None = None

    def admits(self, host: str, address: Address) -> bool:
        """Return whether this entry accepts an address to which the host resolved."""
        if self.network is not None:
            return address.version == self.network.version and address in self.network
        return self.host == host and not never_by_name(address)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressPolicy:
    """The rules for ports and addresses."""

    ports: frozenset[int]
    allow: tuple[AllowEntry, ...] = ()

    @about("url")
    def check_port(self, url: TargetUrl) -> None:
        """Raise InvalidTarget if no rule opens the port of this URL."""
        # The addresses of a host name are unknown here, so that a network counts by its port.
        if url.port in self.ports or any(
            entry.port == url.port and (entry.network is not None or entry.host == url.host)
            for entry in self.allow
        ):
            return
        ports = ", ".join(str(port) for port in sorted(self.ports))
        raise InvalidTarget(
            f"url: port {url.port} is not allowed (DURABLE_TASKS['HTTP_PORTS']: {ports})."
        )

    def why_refused(self, url: TargetUrl, address: Address) -> str | None:
        """Return why a request to this address is refused, for the operator; None if it is not."""
        refused = why_refused(address)
        if refused is None and url.port in self.ports:
            return None
        for entry in self.allow:
            port = url.port in self.ports if entry.port is None else entry.port == url.port
            if port and entry.admits(url.host, address):
                return None
        return refused or f"port {url.port} is not allowed"

    @about("url")
    def check(self, url: TargetUrl) -> None:
        """Raise InvalidTarget for what the URL itself shows: its port, and an address as its
        host.
        """
        self.check_port(url)
        if url.literal is not None and self.why_refused(url, url.literal) is not None:
            raise InvalidTarget(f"url: {url.host} is not a public address.")


def address_policy(ports: Iterable[int], allow: Iterable[str]) -> AddressPolicy:
    """Return the rules of HTTP_PORTS and HTTP_ALLOW; raises InvalidTarget for a bad entry."""
    return AddressPolicy(ports=frozenset(ports), allow=tuple(allow_entry(text) for text in allow))


def allow_entry(text: object) -> AllowEntry:
    """Return one entry of HTTP_ALLOW: a host, ``host:port`` or a network; raises InvalidTarget."""
    if not isinstance(text, str):
        raise InvalidTarget(f"{text!r}: give a host, host:port or a network such as 10.1.0.0/16.")
    if "/" in text:
        return AllowEntry(network=_network(text))
    match = _HOST_PORT.fullmatch(text)
    bare = text.strip("[]")
    if match is None and ":" in bare:
        return AllowEntry(network=_network(bare))
    try:
        if "?" in text or "#" in text:
            raise InvalidTarget("An entry is not a URL.")
        url = parsed_url(f"http://{text}")
    except InvalidTarget:
        raise InvalidTarget(
            f"{text!r}: give a host, host:port or a network such as 10.1.0.0/16."
        ) from None
    port = url.port if match is not None else None
    if url.literal is not None:
        return AllowEntry(network=ip_network(url.literal), port=port)
    return AllowEntry(host=url.host, port=port)


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise InvalidTarget(
            f"{text!r}: give a host, host:port or a network such as 10.1.0.0/16 ({error})."
        ) from None
