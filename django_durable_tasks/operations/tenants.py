"""Operations on tenants, their API keys and their signing secrets."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.choices import KeyMode
from django_durable_tasks.models import Tenant
from django_durable_tasks.models.tenants import ApiKeyQuerySet
from django_durable_tasks.operations.operation import (
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Target,
)
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.tenants import access, quotas
from django_durable_tasks.tenants.values import NUMBERS, REQUESTS, ApiScope


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
    return OperationResult({"set": 1}, gettext("Set the quotas of %s.") % tenant.slug)


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
    done = access.assign_staff(tenant, username, by=by, reason=reason)
    text = gettext("%(user)s is limited to %(tenant)s and the other tenants assigned to this user.")
    return OperationResult({"assigned": done}, text % {"user": username, "tenant": tenant.slug})


def _unassign(
    tenant: Tenant, *, by: str, reason: str, username: str, all_tenants: bool = False
) -> OperationResult:
    if all_tenants:
        done = access.allow_all_tenants(tenant, username, by=by, reason=reason)
        text = gettext("%(user)s sees all tenants.")
    else:
        done = access.unassign_staff(tenant, username, by=by, reason=reason)
        text = gettext("%(user)s is not assigned to %(tenant)s and stays limited.")
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

TENANT_OPERATIONS = (SET_QUOTAS, ASSIGN_STAFF, UNASSIGN_STAFF)


def _create(
    tenant: Tenant,
    *,
    by: str,
    reason: str,
    name: str,
    scopes: str,
    expires_at: datetime | None = None,
    mode: str = KeyMode.LIVE,
) -> OperationResult:
    """Create a key; ``value`` is the IssuedKey. ``scopes`` are separated by commas."""
    issued = access.create_key(
        tenant,
        name,
        [scope.strip() for scope in scopes.split(",") if scope.strip()],
        now=estimated_now(),
        expires_at=expires_at,
        mode=mode,
        by=by,
        reason=reason,
    )
    message = gettext("Created the API key %s. It is shown only once.") % issued.row.prefix
    return OperationResult({"created": 1}, message, value=issued)


def _revoke(
    keys: ApiKeyQuerySet, *, by: str, reason: str, at: datetime | None = None
) -> OperationResult:
    done = access.revoke_key(keys, now=estimated_now(), at=at, by=by, reason=reason)
    message = ngettext("Revoked %d API key.", "Revoked %d API keys.", done) % done
    return OperationResult({"revoked": done}, message)


_KEYS_BY_OPERATORS = "a key must not create keys with more scopes"
CREATE = Operation(
    target=Target.TENANT,
    name="create_api_key",
    title=_("Create an API key"),
    help=_(
        "Creates a key for the HTTP API. To rotate a key, create a second one of the same name and"
        " revoke the first one when all clients use the second."
    ),
    permission="add_apikey",
    perform=_create,
    not_in_api=_KEYS_BY_OPERATORS,
    confirm=False,
    fields=(
        Argument(
            name="name",
            kind=ArgumentType.TEXT,
            label=_("Name"),
            help=_("What uses the key."),
            metavar="NAME",
        ),
        Argument(
            name="scopes",
            kind=ArgumentType.TEXT,
            label=_("Scopes"),
            help=_("What the key may do, separated by commas: %s.") % ", ".join(ApiScope),
            default="read,create",
            metavar="SCOPES",
        ),
        Argument(
            name="expires_at",
            kind=ArgumentType.INSTANT,
            label=_("Expires at"),
            help=_("When the key becomes invalid. If empty, it does not expire."),
            metavar="INSTANT",
        ),
        Argument(
            name="mode",
            kind=ArgumentType.CHOICE,
            label=_("Mode"),
            help=_("Part of the prefix, to distinguish the keys of a test system."),
            choices=tuple((mode.value, mode.value) for mode in KeyMode),
            default=KeyMode.LIVE.value,
        ),
    ),
)
REVOKE = Operation(
    target=Target.API_KEYS,
    name="revoke",
    title=_("Revoke API keys"),
    help=_("Requests with these keys are refused from now on, or from a later time."),
    permission="revoke_apikey",
    perform=_revoke,
    not_in_api=_KEYS_BY_OPERATORS,
    fields=(
        Argument(
            name="at",
            kind=ArgumentType.INSTANT,
            label=_("At"),
            help=_("When the keys become invalid. If empty, now."),
            metavar="INSTANT",
        ),
    ),
)

API_KEY_OPERATIONS = (CREATE, REVOKE)


# The secrets with which our requests to a receiver are signed, for the receiver's own check.
#
# Reading them has an audit entry, although nothing is changed: a reader can sign requests that the
# receiver accepts.


OPERATIONS = (
    *TENANT_OPERATIONS,
    *API_KEY_OPERATIONS,
)
