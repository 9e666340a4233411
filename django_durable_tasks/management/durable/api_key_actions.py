"""``api-key list``, ``api-key create`` and ``api-key revoke``."""

from __future__ import annotations

from argparse import ArgumentParser

from django_durable_tasks import conf
from django_durable_tasks.engine.db.clock_estimate import estimated_now
from django_durable_tasks.management.durable.operation_arguments import add_operations, values
from django_durable_tasks.management.durable.output import Output, table
from django_durable_tasks.management.durable.subcommand import (
    OK,
    REFUSED,
    Options,
    Subcommand,
    by_and_reason,
    refuse,
)
from django_durable_tasks.models import ApiKey, Tenant
from django_durable_tasks.models.api_key import ApiKeyQuerySet
from django_durable_tasks.operations import api_keys

_COLUMNS = ("key", "name", "tenant", "scopes", "state", "expires_at", "last_used_at")
_SHOWN = 1_000
_DEFAULT = "default"


def api_key(options: Options, out: Output) -> int:
    """List the API keys, create one, or revoke one."""
    return {"list": _list, "create": _create, "revoke": _revoke}[options["action"]](options, out)


def _rows() -> ApiKeyQuerySet:
    found: ApiKeyQuerySet = ApiKey.objects.using(conf.settings().DATABASE)
    return found


def _list(options: Options, out: Output) -> int:
    found = _rows().select_related("tenant").order_by("tenant_id", "name", "pk")
    if options["tenant"] is not None:
        found = found.for_tenant(_tenant(options))
    now = estimated_now()
    rows = [
        {
            "key": row.prefix,
            "name": row.name,
            "tenant": row.tenant.slug,
            "scopes": row.scopes,
            "state": "live" if row.is_live(now) else "revoked or expired",
            "expires_at": row.expires_at,
            "last_used_at": row.last_used_at,
        }
        for row in found[:_SHOWN]
    ]
    out.emit(rows, table(_COLUMNS, rows, "there are no API keys"))
    return OK


def _create(options: Options, out: Output) -> int:
    if not options["name"]:
        refuse("Name what uses the key: --name billing.")
    outcome = api_keys.CREATE.perform(
        _tenant(options), **by_and_reason(options), **values(options, api_keys.CREATE)
    )
    row, text = outcome.value.row, outcome.value.text
    out.note(outcome.message)
    shown = {"command": "api-key", "created": row.prefix, "tenant": row.tenant.slug, "key": text}
    out.emit(shown, text)
    return OK


def _revoke(options: Options, out: Output) -> int:
    if options["key"] is None:
        refuse("Name the key by its first part, for example ddt_live_0a1b2c3d.")
    identifier = options["key"].split("_")[2:3] or [options["key"]]
    outcome = api_keys.REVOKE.perform(
        _rows().filter(identifier=identifier[0]),
        **by_and_reason(options),
        **values(options, api_keys.REVOKE),
    )
    revoked = bool(outcome.changed)
    shown = {"command": "api-key", "key": options["key"], "revoked": revoked}
    out.emit(shown, outcome.message if revoked else "There is no such live key.")
    return OK if revoked else REFUSED


def _tenant(options: Options) -> Tenant:
    slug = options["tenant"] or _DEFAULT
    row = Tenant.objects.using(conf.settings().DATABASE).filter(slug=slug).first()
    if row is None:
        refuse(f"There is no tenant {slug!r}.")
    return row


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "create", "revoke"), help="What to do.")
    parser.add_argument(
        "key", metavar="KEY", nargs="?", help="The first part of a key: ddt_live_0a1b2c3d."
    )
    parser.add_argument("--tenant", help=f"The slug of the tenant. Default: {_DEFAULT}.")
    add_operations(parser, *api_keys.OPERATIONS)


API_KEY = Subcommand(
    name="api-key",
    summary="or list the keys",
    operations=api_keys.OPERATIONS,
    examples=(
        "api-key list",
        "api-key create --tenant acme --name billing --scopes read,create",
        "api-key revoke ddt_live_0a1b2c3d --yes --reason 'found in a log'",
    ),
    arguments=_arguments,
    run=api_key,
)
