"""Operations on a tenant."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.engine.db.clock_estimate import estimated_now
from django_durable_tasks.engine.tenants import quotas, staff
from django_durable_tasks.models import Tenant
from django_durable_tasks.operations.operation import (
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Target,
)
from django_durable_tasks.rules.tenants.quotas import NUMBERS, REQUESTS


def _set(
    tenant: Tenant, *, by: str, reason: str, reset: bool = False, **given: Any
) -> OperationResult:
    """Set the quotas that are not None; with ``reset`` the others get the values of QUOTAS."""
    values = {
        name: given.get(name)
        for name in (*NUMBERS, REQUESTS)
        if reset or given.get(name) is not None
    }
    quotas.set_quotas(tenant, values, now=estimated_now(), by=by, reason=reason)
    return OperationResult({"set": 1}, _now("Set the quotas of %s.") % tenant.slug)


def _number(name: str, label: Any, text: Any) -> Argument:
    kind = ArgumentType.INTEGER
    return Argument(name=name, kind=kind, label=label, help=text, minimum=0, metavar="N")


SET_QUOTAS = Operation(
    target=Target.TENANT,
    name="set_quotas",
    title=_("Set quotas"),
    help=_(
        "Limits what a tenant may create through the HTTP API. Quotas that are not given keep"
        " their values. How many of its tasks run at the same time or start in a period is set by"
        " the limit of the scope tenant:ID."
    ),
    permission="set_tenantquota",
    perform=_set,
    not_in_api="an operator sets the quotas of tenants",
    confirm=False,
    fields=(
        _number("open_tasks", _("Open tasks"), _("The most tasks that have not ended.")),
        _number(
            "recurring_tasks",
            _("Recurring tasks"),
            _("The most recurring tasks that are not cancelled."),
        ),
        _number(
            "runs_per_day",
            _("Runs of a recurring task in a day"),
            _("The most fire times of one recurring task in a day."),
        ),
        _number("calendars", _("Calendars"), _("The most calendars.")),
        _number(
            "payload_bytes",
            _("Bytes of the arguments"),
            _("The largest arguments of one task, as JSON."),
        ),
        Argument(
            name="requests",
            kind=ArgumentType.TEXT,
            label=_("Requests"),
            help=_("Requests to the HTTP API in a period: 600/m, 10/s."),
            metavar="RATE",
        ),
        Argument(
            name="reset",
            kind=ArgumentType.FLAG,
            label=_("Reset"),
            help=_("Quotas that are not given get the values of the setting QUOTAS."),
        ),
    ),
)


def _assign(tenant: Tenant, *, by: str, reason: str, username: str) -> OperationResult:
    done = staff.assign(tenant, username, by=by, reason=reason)
    text = _now("%(user)s is limited to %(tenant)s and the other tenants assigned to this user.")
    return OperationResult({"assigned": done}, text % {"user": username, "tenant": tenant.slug})


def _unassign(
    tenant: Tenant, *, by: str, reason: str, username: str, all_tenants: bool = False
) -> OperationResult:
    if all_tenants:
        done = staff.allow_all(tenant, username, by=by, reason=reason)
        text = _now("%(user)s sees all tenants.")
    else:
        done = staff.unassign(tenant, username, by=by, reason=reason)
        text = _now("%(user)s is not assigned to %(tenant)s and stays limited.")
    return OperationResult({"removed": done}, text % {"user": username, "tenant": tenant.slug})


_BY_OPERATORS = "an operator decides which tenants a user sees"
_USERNAME = Argument(
    name="username",
    kind=ArgumentType.TEXT,
    label=_("User name"),
    help=_("A staff user who is no superuser."),
    required=True,
    metavar="USER",
)
ASSIGN_STAFF = Operation(
    target=Target.TENANT,
    name="assign_staff",
    title=_("Assign a staff user"),
    help=_(
        "The user sees and changes only the tenants assigned to them, in the admin and in the"
        " HTTP API. A user who was never limited sees all tenants."
    ),
    permission="add_stafftenant",
    perform=_assign,
    not_in_api=_BY_OPERATORS,
    confirm=False,
    fields=(_USERNAME,),
)
UNASSIGN_STAFF = Operation(
    target=Target.TENANT,
    name="unassign_staff",
    title=_("Remove a staff user"),
    help=_(
        "The user stays limited to the other assigned tenants. Without any of them the user sees"
        " no tenant."
    ),
    permission="delete_stafftenant",
    perform=_unassign,
    not_in_api=_BY_OPERATORS,
    confirm=False,
    fields=(
        _USERNAME,
        Argument(
            name="all_tenants",
            kind=ArgumentType.FLAG,
            label=_("Removed users see all tenants"),
            help=_("Ends the limit: the user sees all tenants, whatever was assigned."),
        ),
    ),
)

OPERATIONS = (SET_QUOTAS, ASSIGN_STAFF, UNASSIGN_STAFF)
