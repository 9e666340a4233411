"""API keys, quotas and staff users of tenants."""

from __future__ import annotations

from django_durable_tasks.command import subcommand as cli
from django_durable_tasks.contrib.api import access, quotas
from django_durable_tasks.contrib.api.models import ApiKey, ApiKeyQuerySet, StaffTenant
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.tables import database

# Rows that a list shows at most, so that an installation with many tenants can print it.
_MOST = 1_000
_DEFAULT = "default"
_API_KEY = ("key", "name", "tenant", "scopes", "state", "expires_at", "last_used_at")


@cli.subcommand(
    cli.argument("action", choices=("list", "create", "revoke"), help="What to do."),
    cli.argument(
        "key", metavar="KEY", nargs="?", help="The first part of a key: ddt_live_0a1b2c3d."
    ),
    cli.argument("--tenant", help=f"The slug of the tenant. Default: {_DEFAULT}."),
    operations=(access.create_key, access.revoke_key),
)
def api_key(options: cli.Options, out: cli.Output) -> int:
    """List the API keys, create one, or revoke one.

    Examples:
        api-key list
        api-key create --tenant acme --name billing --scopes read,create
        api-key revoke ddt_live_0a1b2c3d --yes --reason 'found in a log'
    """
    keys: ApiKeyQuerySet = ApiKey.objects.using(database())
    if options["action"] == "list":
        if options["tenant"] is not None:
            keys = keys.for_tenant(cli.tenant_named(options["tenant"]))
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
            for row in keys.select_related("tenant").order_by("tenant_id", "name", "pk")[:_MOST]
        ]
        out.note_if_cut(rows, _MOST)
        return out.emit(rows, cli.table(_API_KEY, rows, "there are no API keys"))
    if options["action"] == "create":
        if options["dry_run"]:
            cli.refuse("--dry-run shows which key `revoke` would revoke.")
        if not options["name"]:
            cli.refuse("Name what uses the key: --name billing.")
        tenant = cli.tenant_named(options["tenant"] or _DEFAULT)
        outcome = cli.perform(access.create_key, tenant, options)
        out.note(outcome.message)
        row, text = outcome.value.row, outcome.value.text
        return out.report(text, created=row.prefix, tenant=tenant.slug, key=text)
    if options["key"] is None:
        cli.refuse("Name the key by its first part, for example ddt_live_0a1b2c3d.")
    keys = keys.filter(identifier=(options["key"].split("_")[2:3] or [options["key"]])[0])
    if options["dry_run"]:
        live = [row.prefix for row in keys.live(estimated_now())]
        text = f"would revoke: {', '.join(live) or 'nothing'}"
        return out.report(text, dry_run=True, would_revoke=live)
    outcome = cli.perform(access.revoke_key, keys, options)
    revoked = bool(outcome.changed)
    text = outcome.message if revoked else "There is no such live key."
    return out.report(text, cli.OK if revoked else cli.REFUSED, key=options["key"], revoked=revoked)


@cli.subcommand(
    cli.argument("tenant", metavar="TENANT", help="The slug of the tenant."),
    operations=(quotas.set_quotas,),
)
def quota(options: cli.Options, out: cli.Output) -> int:
    """Show the quotas of a tenant and their usage, after setting those that are given.

    Examples:
        quota acme
        quota acme --open-tasks 10000 --requests 600/m --reason 'contract of May'
        quota acme --reset
    """
    tenant = cli.tenant_named(options["tenant"])
    limits = cli.values(options, quotas.set_quotas).values()
    if any(value is not None and value is not False for value in limits):
        out.note(cli.perform(quotas.set_quotas, tenant, options).message)
        tenant = cli.tenant_named(options["tenant"])
    rate = quotas.tenant_quotas(tenant).requests
    requests = {"quota": "requests", "limit": None if rate is None else str(rate), "used": None}
    rows = [
        {"quota": usage.name, "limit": usage.limit, "used": usage.used}
        for usage in quotas.usage(tenant)
    ]
    rows.append(requests)
    return out.emit(rows, cli.table(("quota", "limit", "used"), rows))


@cli.subcommand(
    cli.argument("action", choices=("list", "assign", "unassign"), help="What to do."),
    cli.argument("--tenant", metavar="TENANT", help="The slug of the tenant."),
    cli.argument("--username", metavar="USER", help="The name of the staff user."),
    operations=(access.assign_staff, access.unassign_staff),
)
def staff(options: cli.Options, out: cli.Output) -> int:
    """List the tenants that staff users see, or change an assignment.

    Examples:
        staff list
        staff assign --tenant acme --username ann --reason 'support of acme'
        staff unassign --tenant acme --username ann
        staff unassign --tenant acme --username ann --all-tenants
    """
    if options["action"] == "list":
        # The assignments, limited users without a tenant, and the users who see all tenants.
        assignments = tables.unguarded(StaffTenant).select_related("tenant")
        listed = list(assignments.order_by("username", "tenant_id")[:_MOST])
        assigned = {row.user_key for row in listed if row.tenant is not None}
        shown = {
            (row.user_key, row.tenant_id): row
            for row in listed
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
        unlimited = access.unlimited_users(_MOST)
        rows += [
            {"user": user.username, "tenant": "(all)", "assigned_by": "", "reason": user.reason}
            for user in unlimited
        ]
        out.note_if_cut(max(listed, unlimited, key=len), _MOST)
        columns = ("user", "tenant", "assigned_by", "reason")
        return out.emit(rows, cli.table(columns, rows, "there are no staff users"))
    if not options["tenant"] or not options["username"]:
        cli.refuse("Give --tenant and --username.")
    operation = access.assign_staff if options["action"] == "assign" else access.unassign_staff
    outcome = cli.perform(operation, cli.tenant_named(options["tenant"]), options)
    out.note(outcome.message)
    return cli.OK if outcome.changed else cli.REFUSED
