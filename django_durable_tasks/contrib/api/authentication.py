"""Who sends a request, and at which rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from django_durable_tasks import conf
from django_durable_tasks.contrib.api import access, problems, quotas
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.contrib.api.problems import Problem, invalid_header
from django_durable_tasks.models import DEFAULT_TENANT_ID, Tenant
from django_durable_tasks.operations import APP
from django_durable_tasks.store.clock import ReceivedTime, estimated_now

# The request rate of a tenant, counted in the database.
#
# Headers as in the IETF draft draft-ietf-httpapi-ratelimit-headers.


_NAME = '"requests"'


class TenantThrottle(BaseThrottle):
    """Counts the requests of a tenant's keys; sets ``view.rate``."""

    def allow_request(self, request: Request, view: Any) -> bool:
        """Count the request, unless it was counted with the read of its key; raises Problem."""
        if isinstance(request.user, Caller) and request.user.user is None:
            view.rate = request.user.decision or admit_request(request.user.tenant)
        return True


def admit_request(tenant: Tenant, requests: int = 1) -> quotas.RateDecision | None:
    """Count a request of the tenant, or one that costs as much as several; None without a quota of
    requests. Raises Problem.
    """
    rate = quotas.tenant_quotas(tenant).requests
    if rate is None:
        return None
    decision = quotas.admit_requests(tenant.pk, rate, estimated_now(), requests)
    if decision.admitted:
        return decision
    retry = max(decision.retry_after, 1)
    raise Problem(
        problems.TOO_MANY_REQUESTS,
        f"The tenant may send {rate.number:,} requests in {rate.seconds:,} s. Repeat the request"
        f" after {retry} s.",
        headers={**rate_headers(decision), "Retry-After": str(retry)},
        more={"violated-policies": ["requests"]},
    )


def rate_headers(decision: quotas.RateDecision) -> dict[str, str]:
    """Return the headers ``RateLimit-Policy`` and ``RateLimit``; ``t`` is never later than
    ``Retry-After``.
    """
    rate = decision.rate
    wait = decision.retry_after or decision.reset
    return {
        "RateLimit-Policy": f"{_NAME};q={rate.number};w={rate.seconds}",
        "RateLimit": f"{_NAME};r={decision.left};t={wait}",
    }


# Who sends a request: a program with an API key, or a staff user with a session.


TENANT_HEADER = "Durable-Tenant"
_LONGEST = 200
KEY_ACTOR = "API key "
"""The name of a key in audit entries begins with this."""
_READS_SECRETS = "view_task_arguments"


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant for which a request acts, the name that is recorded, and what it may do.

    A key has scopes. A staff user (``user``) has all of them and is restricted by permissions.
    ``tenants``: the ids of the tenants that the caller may choose; None if these are all.
    ``clock``: the time of the database, which returned it with the key; None if it did not.
    ``decision``: what the request rate decided if the request was counted with the read of its key.
    """

    tenant: Tenant
    name: str
    scopes: frozenset[ApiScope]
    user: Any = None
    tenants: frozenset[int] | None = None
    clock: ReceivedTime | None = None
    decision: quotas.RateDecision | None = None
    is_authenticated: bool = True

    def require_permission(self, *names: str) -> None:
        """Raise Problem unless the user has one of these permissions; a key needs none."""
        names = tuple(name if "." in name else f"{APP}.{name}" for name in names)
        if self.user is None or any(map(self.user.has_perm, names)):
            return
        raise Problem(
            problems.PERMISSION_MISSING,
            f"This needs the permission {' or '.join(names)}.",
            more={"permissions": list(names)},
        )

    def require_all_tenants(self) -> None:
        """Raise Problem if the caller is a user who is limited to tenants."""
        if self.user is not None and self.tenants is not None:
            raise Problem(
                problems.PERMISSION_MISSING,
                "All tenants share this; the user is limited to assigned tenants.",
            )

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
        rate: quotas.RequestRate | None = quotas.request_rate_of(conf.quotas().get(quotas.REQUESTS))
        verified = access.verified_key(text.strip(), now, rate)
        if verified is None:
            # One answer for every cause, so that it does not reveal which ids exist.
            raise AuthenticationFailed("The API key is unknown, expired or revoked.")
        row = verified.row
        access.record_key_use(row, now)
        scopes = frozenset(scope for scope in ApiScope if scope in row.scopes)
        name, counted = f"{KEY_ACTOR}{row.prefix}", verified.decision
        return Caller(row.tenant, name, scopes, clock=verified.clock, decision=counted), row

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge of an answer with status 401."""
        return 'Bearer realm="django_durable_tasks"'


class StaffSessionAuthentication(SessionAuthentication):
    """Reads the session of a staff user; a write needs a CSRF token."""

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        """Return the caller; None unless API_SESSIONS is set and a staff user is logged in.

        Raises Problem.
        """
        user: Any = getattr(request._request, "user", None)
        is_staff = user is not None and user.is_active and user.is_staff
        if not conf.settings().API_SESSIONS or not is_staff:
            return None
        try:
            self.enforce_csrf(request)
        except PermissionDenied as refused:
            raise Problem(problems.CSRF_FAILED, str(refused.detail)) from None
        allowed = access.tenants_of(user)
        scopes = frozenset(ApiScope)
        if not user.has_perm(f"{APP}.{_READS_SECRETS}"):
            scopes -= {ApiScope.SECRETS}
        # Without the header, the only tenant or the default one.
        slug = request.headers.get(TENANT_HEADER)
        rows = Tenant.objects.using(conf.settings().DATABASE).select_related("quota")
        if allowed is not None:
            rows = rows.filter(pk__in=allowed)
        if slug is None and allowed is not None and len(allowed) > 1:
            raise invalid_header(TENANT_HEADER, "name one of the tenants of GET /tenants.")
        if slug is None:
            tenant = rows.filter(pk=DEFAULT_TENANT_ID).first() if allowed is None else rows.first()
        else:
            tenant = None if "\x00" in slug else rows.filter(slug=slug[:_LONGEST]).first()
        if tenant is None and allowed is not None and not allowed:
            raise Problem(problems.NOT_FOUND, "No tenant is assigned to this user.")
        if tenant is None:
            raise Problem(
                problems.NOT_FOUND, f"{TENANT_HEADER}: there is no tenant with this slug."
            )
        return Caller(tenant, user.get_username(), scopes, user, allowed), None
