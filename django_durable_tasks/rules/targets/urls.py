"""Parses the URL of an outside server, strictly: two programs must not read it differently.

The text is split here, by characters, and the parts are given to the client as values. No other
parser reads the URL afterwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, IPv6Network
from urllib.parse import quote

from django_durable_tasks.exceptions import InvalidTarget
from django_durable_tasks.rules.targets.addresses import Address, parsed_address

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


def parsed_url(text: object) -> TargetUrl:
    """Return the parts of an http or https URL; raises InvalidTarget."""
    if not isinstance(text, str) or not text:
        raise InvalidTarget(f"url={text!r}: give an http:// or https:// URL as a string.")
    if len(text) > URL_MAX:
        raise InvalidTarget(
            f"url has {len(text):,} characters, at most {URL_MAX:,} are allowed. Put the data into"
            " the body."
        )
    if _UNPRINTABLE.search(text):
        raise InvalidTarget(
            "url contains a space, a control character or a backslash: percent-encode it."
        )
    found = _URL.fullmatch(text)
    if found is None:
        raise InvalidTarget("url must begin with http:// or https://.")
    scheme, authority, rest = found[1].lower(), found[2], found[3]
    host, port = _host_and_port(authority, scheme)
    path = rest if rest.startswith("/") else f"/{rest}"
    return TargetUrl(
        scheme=scheme,
        host=host,
        port=port,
        path=_encoded(path),
        literal=parsed_address(host),
    )


def _encoded(path: str) -> str:
    try:
        return quote(path, safe=_SAFE)
    except UnicodeEncodeError:
        raise InvalidTarget("url contains a lone surrogate, which is not UTF-8.") from None


def _host_and_port(authority: str, scheme: str) -> tuple[str, int]:
    if "@" in authority:
        raise InvalidTarget(
            "url contains a user name or a password: send them in the header Authorization."
        )
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise InvalidTarget(f"url: {authority[:100]!r} is not a host name with an optional port.")
    return _host(found[1]), _port(found[2], scheme)


def _port(text: str | None, scheme: str) -> int:
    if not text:
        return _PORTS[scheme]
    if len(text) > 5 or not 0 < int(text) < 65_536:
        raise InvalidTarget(f"url: the port {text[:20]} is not between 1 and 65535.")
    return int(text)


def _host(text: str) -> str:
    if text.startswith("["):
        address = parsed_address(text[1:-1])
        if address is None or address.version != 6:
            raise InvalidTarget(f"url: {text[:100]} is not an IPv6 address.")
        return str(address)
    host = text.lower().removesuffix(".")
    if not host.isascii():
        raise InvalidTarget("url: write the host name in its ASCII form (xn--...).")
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidTarget(f"url: {text[:100]!r} is not a host name.")
    if _NUMERIC.fullmatch(labels[-1]) and parsed_address(host) is None:
        raise InvalidTarget(
            f"url: {text[:100]!r} is a number: write an IPv4 address as four decimal numbers."
        )
    return host
