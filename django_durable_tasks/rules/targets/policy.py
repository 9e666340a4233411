"""The hosts, ports and addresses that requests to outside servers may reach: HTTP_PORTS and
HTTP_ALLOW.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_network

from django_durable_tasks.exceptions import InvalidTarget
from django_durable_tasks.rules.targets.addresses import (
    Address,
    Network,
    never_by_name,
    why_refused,
)
from django_durable_tasks.rules.targets.urls import TargetUrl, parsed_url

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

    def check_port(self, url: TargetUrl) -> None:
        """Raise InvalidTarget if no rule opens the port of this URL."""
        if url.port in self.ports or any(self._has_port(entry, url) for entry in self.allow):
            return
        ports = ", ".join(str(port) for port in sorted(self.ports))
        raise InvalidTarget(
            f"url: port {url.port} is not allowed (DURABLE_TASKS['HTTP_PORTS']: {ports})."
        )

    def _has_port(self, entry: AllowEntry, url: TargetUrl) -> bool:
        if entry.port != url.port:
            return False
        # The addresses of a host name are unknown here, so that a network counts by its port.
        return entry.network is not None or entry.host == url.host

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
    found = _HOST_PORT.fullmatch(text)
    bare = text.strip("[]")
    if found is None and ":" in bare:
        return AllowEntry(network=_network(bare))
    try:
        if "?" in text or "#" in text:
            raise InvalidTarget("An entry is not a URL.")
        url = parsed_url(f"http://{text}")
    except InvalidTarget:
        raise InvalidTarget(
            f"{text!r}: give a host, host:port or a network such as 10.1.0.0/16."
        ) from None
    port = url.port if found is not None else None
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
