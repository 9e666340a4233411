"""Sends requests with the HTTP client of the package."""

from __future__ import annotations

import ssl

from django_durable_tasks.contrib.callbacks.http import Exchange, HttpClient, Lookup, Resolver
from django_durable_tasks.targets.addresses import AddressPolicy, parsed_url
from django_durable_tasks.targets.answers import RetryStatuses
from django_durable_tasks.targets.http_request import HttpRequest
from tests.unit.targets.urls import lookup as of_tests


def a_client(
    policy: AddressPolicy,
    lookup: Lookup | None = of_tests,
    *,
    kept: int = 1_000,
    tls: ssl.SSLContext | None = None,
) -> HttpClient:
    """Return a client that keeps ``kept`` bytes of an answer. ``lookup``: None for the system's."""
    resolver = Resolver() if lookup is None else Resolver(lookup)
    return HttpClient(
        policy, resolver=resolver, connect_timeout=2.0, body_max=kept, tenant_id=1, tls=tls
    )


def send(client: HttpClient, url: str, *, body: bytes = b"", timeout: float = 5.0) -> Exchange:
    """Send a GET, or a POST if there is a body."""
    return client.send(
        HttpRequest(
            method="POST" if body else "GET",
            url=parsed_url(url),
            headers={},
            body=body,
            timeout=timeout,
            retried=RetryStatuses(),
            endpoint="",
        )
    )
