"""Who sends a request: a program with an API key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from django_durable_tasks.engine.db.clock_estimate import estimated_now
from django_durable_tasks.engine.tenants import api_keys
from django_durable_tasks.models import Tenant
from django_durable_tasks.rules.tenants.api_keys import ApiScope

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant for which a request acts, the name that is recorded, and what it may do."""

    tenant: Tenant
    name: str
    scopes: frozenset[ApiScope]
    is_authenticated: bool = True

    def without_secrets(self) -> Caller:
        """Return the caller for the answer to a write, which may be stored and sent to another key
        of the tenant.
        """
        return replace(self, scopes=self.scopes - {ApiScope.SECRETS})

    @property
    def reads_secrets(self) -> bool:
        """Whether arguments and results are shown unmasked."""
        return ApiScope.SECRETS in self.scopes


class ApiKeyAuthentication(BaseAuthentication):
    """Reads ``Authorization: Bearer ddt_...``."""

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        """Return the caller; None without the header. Raises AuthenticationFailed."""
        kind, _space, text = request.headers.get("Authorization", "").partition(" ")
        if not kind:
            return None
        if kind.lower() != "bearer" or len(text) > _LONGEST:
            raise AuthenticationFailed("Send the API key as `Authorization: Bearer <key>`.")
        now = estimated_now()
        row = api_keys.verified(text.strip(), now)
        if row is None:
            # One answer for every cause, so that it does not reveal which ids exist.
            raise AuthenticationFailed("The API key is unknown, expired or revoked.")
        api_keys.record_use(row, now)
        scopes = frozenset(scope for scope in ApiScope if scope in row.scopes)
        return Caller(row.tenant, f"API key {row.prefix}", scopes), row

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge of an answer with status 401."""
        return 'Bearer realm="django_durable_tasks"'
