"""``api-key``, ``staff`` and ``quota``."""

from __future__ import annotations

from argparse import ArgumentParser

from django_durable_tasks import conf
from django_durable_tasks.command.arguments import add_operations, values
from django_durable_tasks.command.subcommand import (
    OK,
    REFUSED,
    Options,
    Output,
    Subcommand,
    by_and_reason,
    refuse,
    table,
)
from django_durable_tasks.models import ApiKey, Tenant
from django_durable_tasks.models.tenants import ApiKeyQuerySet
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.tenants import access, quotas
from django_durable_tasks.tenants.access import assignments, unlimited_users
from django_durable_tasks.tenants.quotas import tenant_quotas, usage

_API_KEY_COLUMNS = ("key", "name", "tenant", "scopes", "state", "expires_at", "last_used_at")
_SHOWN = 1_000
_DEFAULT = "default"


def api_key(options: Options, out: Output) -> int:
    """List the API keys, create one, or revoke one."""
    return {"list": _list_api_keys, "create": _create, "revoke": _revoke}[options["action"]](
        options, out
    )


def _rows() -> ApiKeyQuerySet:
    found: ApiKeyQuerySet = ApiKey.objects.using(conf.settings().DATABASE)
    return found


def _list_api_keys(options: Options, out: Output) -> int:
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
    out.emit(rows, table(_API_KEY_COLUMNS, rows, "there are no API keys"))
    return OK


def _create(options: Options, out: Output) -> int:
    if not options["name"]:
        refuse("Name what uses the key: --name billing.")
    if options["dry_run"]:
        refuse("create has no --dry-run: only revoke shows what it would change.")
    outcome = access.create_key.perform(
        _tenant(options), **by_and_reason(options), **values(options, access.create_key)
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
    selected = _rows().filter(identifier=identifier[0])
    if options["dry_run"]:
        now = estimated_now()
        live = [row.prefix for row in selected if row.is_live(now)]
        would = {"command": "api-key", "dry_run": True, "would_revoke": live}
        out.emit(would, f"would revoke {live[0]}" if live else "There is no such live key.")
        return OK
    outcome = access.revoke_key.perform(
        selected,
        **by_and_reason(options),
        **values(options, access.revoke_key),
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


def _api_key_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "create", "revoke"), help="What to do.")
    parser.add_argument(
        "key", metavar="KEY", nargs="?", help="The first part of a key: ddt_live_0a1b2c3d."
    )
    parser.add_argument("--tenant", help=f"The slug of the tenant. Default: {_DEFAULT}.")
    add_operations(parser, access.create_key, access.revoke_key)


API_KEY = Subcommand(
    name="api-key",
    summary="or list the keys",
    operations=(access.create_key, access.revoke_key),
    examples=(
        "api-key list",
        "api-key create --tenant acme --name billing --scopes read,create",
        "api-key revoke ddt_live_0a1b2c3d --yes --reason 'found in a log'",
    ),
    arguments=_api_key_arguments,
    run=api_key,
)


# ``quota``: shows the quotas of a tenant with their usage, or sets them.


_QUOTA_COLUMNS = ("quota", "limit", "used")


def quota(options: Options, out: Output) -> int:
    """Set the quotas that are given, then show all."""
    tenant = tenant_named(options["tenant"])
    given = values(options, quotas.set_quotas)
    if any(value not in (None, False) for value in given.values()):
        outcome = quotas.set_quotas.perform(tenant, **by_and_reason(options), **given)
        out.note(outcome.message)
        tenant = tenant_named(options["tenant"])
    rate = tenant_quotas(tenant).requests
    rows = [{"quota": row.name, "limit": row.limit, "used": row.used} for row in usage(tenant)] + [
        {"quota": "requests", "limit": None if rate is None else str(rate), "used": None}
    ]
    out.emit(rows, table(_QUOTA_COLUMNS, rows))
    return OK


def tenant_named(slug: str) -> Tenant:
    """Return the tenant with this slug, with its quota; refuses if there is none."""
    rows = Tenant.objects.using(conf.settings().DATABASE).select_related("quota")
    row = rows.filter(slug=slug).first()
    if row is None:
        refuse(f"There is no tenant {slug!r}.")
    return row


def _quota_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT", help="The slug of the tenant.")
    add_operations(parser, quotas.set_quotas)


QUOTA = Subcommand(
    name="quota",
    summary="or show the quotas of a tenant and their usage",
    operations=(quotas.set_quotas,),
    examples=(
        "quota acme",
        "quota acme --open-tasks 10000 --requests 600/m --reason 'contract of May'",
        "quota acme --reset",
    ),
    arguments=_quota_arguments,
    run=quota,
)


# ``staff``: lists which tenants each staff user sees, and changes it.


_STAFF_COLUMNS = ("user", "tenant", "assigned_by", "reason")
_STAFF_SHOWN = 1_000


def staff(options: Options, out: Output) -> int:
    """List the assignments and the users who see all tenants, or change an assignment."""
    if options["action"] == "list":
        return _list_staff(out)
    if not options["tenant"] or not options["username"]:
        refuse("Give --tenant and --username.")
    operation = access.assign_staff if options["action"] == "assign" else access.unassign_staff
    outcome = operation.perform(
        tenant_named(options["tenant"]), **by_and_reason(options), **values(options, operation)
    )
    out.note(outcome.message)
    return OK if outcome.changed else REFUSED


def _list_staff(out: Output) -> int:
    found = assignments().select_related("tenant").order_by("username", "tenant_id")[:_STAFF_SHOWN]
    assigned = {row.user_key for row in found if row.tenant is not None}
    shown = {
        (row.user_key, row.tenant_id): row
        for row in found
        if row.tenant is not None or row.user_key not in assigned
    }
    rows = [
        {
            "user": row.username,
            "tenant": "(none)" if row.tenant is None else row.tenant.slug,
            "assigned_by": row.assigned_by,
            "reason": row.reason,
        }
        for row in shown.values()
    ]
    rows += [
        {"user": user.username, "tenant": "(all)", "assigned_by": "", "reason": user.reason}
        for user in unlimited_users(_STAFF_SHOWN)
    ]
    out.emit(rows, table(_STAFF_COLUMNS, rows, "there are no staff users"))
    return OK


def _staff_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "assign", "unassign"), help="What to do.")
    parser.add_argument("--tenant", metavar="TENANT", help="The slug of the tenant.")
    parser.add_argument("--username", metavar="USER", help="The name of the staff user.")
    add_operations(parser, access.assign_staff, access.unassign_staff, without={"username"})


STAFF = Subcommand(
    name="staff",
    summary="or list the tenants that staff users see",
    operations=(access.assign_staff, access.unassign_staff),
    examples=(
        "staff list",
        "staff assign --tenant acme --username ann --reason 'support of acme'",
        "staff unassign --tenant acme --username ann",
        "staff unassign --tenant acme --username ann --all-tenants",
    ),
    arguments=_staff_arguments,
    run=staff,
)
