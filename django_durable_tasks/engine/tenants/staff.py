"""Limits staff users to tenants.

A superuser and a user who was never limited see all tenants. A user whose last assignment was
removed sees none. Only ``allow_all`` ends the limit.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

from django.contrib.auth import get_user_model
from django.db.models import Q

from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.engine.db import tables
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import StaffTenant, Tenant
from django_durable_tasks.models.staff_tenant import StaffTenantQuerySet


def assignments() -> StaffTenantQuerySet:
    """Return a queryset of all assignments, without the guard against writes."""
    found: StaffTenantQuerySet = StaffTenant.objects.using(tables.database())
    return found.unguarded()


def tenants_of(user: Any) -> frozenset[int] | None:
    """Return the ids of the tenants that this user may see, possibly none of them; None if these
    are all.
    """
    if user.is_superuser:
        return None
    rows = assignments().filter(user_key=str(user.pk))
    found = set(rows.values_list("tenant_id", flat=True))
    return frozenset(found - {None}) if found else None


class UnlimitedUser(NamedTuple):
    """A staff user who sees all tenants, and why."""

    username: str
    reason: str


def unlimited_users(number: int) -> list[UnlimitedUser]:
    """Return the first active staff users who see all tenants, by name, at most ``number``."""
    users = get_user_model()
    columns = {field.name for field in users._meta.get_fields()}
    rows = users._default_manager.order_by(users.USERNAME_FIELD)
    for name in {"is_staff", "is_active"} & columns:
        rows = rows.filter(**{name: True})
    limited = set(assignments().values_list("user_key", flat=True))
    found = (
        UnlimitedUser(user.get_username(), _why_all(user, str(user.pk) in limited))
        for user in rows.iterator()
        if user.is_staff and user.is_active
        if user.is_superuser or str(user.pk) not in limited
    )
    return list(islice(found, number))


def _why_all(user: Any, is_assigned: bool) -> str:
    if not user.is_superuser:
        return "was never limited to tenants"
    return "superuser, assignments have no effect" if is_assigned else "superuser"


def assign(tenant: Tenant, username: str, *, by: str = "", reason: str = "") -> int:
    """Limit a staff user to this tenant and to those assigned before; return 0 if nothing changed.

    Raises InvalidOption if there is no such staff user, or if the user is a superuser, who cannot
    be limited.
    """
    user = _user(username)
    if user is None or not user.is_staff:
        raise InvalidOption(f"username={username!r}: there is no staff user with this name.")
    if user.is_superuser:
        raise InvalidOption(f"username={username!r} is a superuser, who sees all tenants.")
    with recorded("tenant.assign_staff", by=by, reason=reason) as entry:
        rows = Tenant.objects.using(tables.database())
        tables.locked_for_change(rows).get(pk=tenant.pk)
        if assignments().filter(user_key=str(user.pk), tenant_id=tenant.pk).exists():
            return 0
        assignments().create(
            user_key=str(user.pk),
            username=username[:200],
            tenant_id=tenant.pk,
            assigned_by=by[:200],
            reason=reason[:500],
        )
        # After the insert, so that the user is limited at every moment.
        assignments().filter(user_key=str(user.pk), tenant__isnull=True).delete()
        entry.changed("tenant", tenant.pk, {}, {"staff": username}, tenant.pk)
    return 1


def _user(username: str) -> Any:
    users = get_user_model()
    return users._default_manager.filter(**{users.USERNAME_FIELD: username}).first()


def unassign(tenant: Tenant, username: str, *, by: str = "", reason: str = "") -> int:
    """Remove the assignment of a user to this tenant; return 0 if there was none.

    The user stays limited: the row remains without its tenant. The name may be the present one of
    the user or the one at the time of the assignment.
    """
    with recorded("tenant.unassign_staff", by=by, reason=reason) as entry:
        done = _of(username).filter(tenant_id=tenant.pk).update(tenant=None)
        if done:
            entry.changed("tenant", tenant.pk, {"staff": username}, {}, tenant.pk)
    return done


def allow_all(tenant: Tenant, username: str, *, by: str = "", reason: str = "") -> int:
    """Let a limited user see all tenants; return 0 if the user is not limited.

    The audit entry is about ``tenant``, from which the user was removed last.
    """
    with recorded("tenant.unassign_staff", by=by, reason=reason) as entry:
        slugs = list(
            _of(username).exclude(tenant=None).order_by("pk").values_list("tenant__slug", flat=True)
        )
        done, _each = _of(username).delete()
        if done:
            before = {"staff": username, "tenants": slugs}
            entry.changed("tenant", tenant.pk, before, {"tenants": "all"}, tenant.pk)
    return done


def _of(username: str) -> StaffTenantQuerySet:
    user = _user(username)
    named = Q(username=username) if user is None else Q(user_key=str(user.pk))
    return assignments().filter(named)
