"""Who performs the writes of this context: set by the admin, the API and the commands."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from django_durable_tasks.rules.audit import AuditSource


@dataclass(frozen=True, slots=True)
class AuditActor:
    """The source of a write, the name that is recorded if an operation is given none, and the IP
    address.

    ``tenant_id``: the tenant that sees the entries about objects that belong to no tenant.
    """

    source: AuditSource = AuditSource.CODE
    name: str = ""
    address: str | None = None
    tenant_id: int | None = None


_CODE = AuditActor()
_actor: ContextVar[AuditActor] = ContextVar("durable_tasks_audit_actor", default=_CODE)


def current_actor() -> AuditActor:
    """Return who performs the writes of this context; a program outside of all entry points."""
    return _actor.get()


@contextmanager
def acting(
    source: AuditSource, name: str = "", address: str | None = None, tenant_id: int | None = None
) -> Iterator[None]:
    """Record the writes of the block under this source, name and address."""
    token = _actor.set(AuditActor(source, name, _checked(address), tenant_id))
    try:
        yield
    finally:
        _actor.reset(token)


def _checked(address: str | None) -> str | None:
    """Return the address, or None if it is not an IP address, for example that of a socket file."""
    try:
        return str(ipaddress.ip_address((address or "").partition("%")[0]))
    except ValueError:
        return None
