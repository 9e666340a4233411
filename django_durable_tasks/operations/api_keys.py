"""Operations on the API keys of a tenant."""

from __future__ import annotations

from datetime import datetime

from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_durable_tasks.engine.db.clock_estimate import estimated_now
from django_durable_tasks.engine.tenants import api_keys
from django_durable_tasks.models import Tenant
from django_durable_tasks.models.api_key import ApiKeyQuerySet
from django_durable_tasks.operations.operation import (
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Target,
)
from django_durable_tasks.rules.tenants.api_keys import ApiScope, KeyMode


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
    issued = api_keys.create(
        tenant,
        name,
        [scope.strip() for scope in scopes.split(",") if scope.strip()],
        now=estimated_now(),
        expires_at=expires_at,
        mode=mode,
        by=by,
        reason=reason,
    )
    message = _now("Created the API key %s. It is shown only once.") % issued.row.prefix
    return OperationResult({"created": 1}, message, value=issued)


def _revoke(
    keys: ApiKeyQuerySet, *, by: str, reason: str, at: datetime | None = None
) -> OperationResult:
    done = api_keys.revoke(keys, now=estimated_now(), at=at, by=by, reason=reason)
    message = ngettext("Revoked %d API key.", "Revoked %d API keys.", done) % done
    return OperationResult({"revoked": done}, message)


_BY_OPERATORS = "a key must not create keys with more scopes"
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
    not_in_api=_BY_OPERATORS,
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
    not_in_api=_BY_OPERATORS,
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

OPERATIONS = (CREATE, REVOKE)
