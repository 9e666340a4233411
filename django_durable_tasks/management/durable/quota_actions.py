"""``quota``: shows the quotas of a tenant with their usage, or sets them."""

from __future__ import annotations

from argparse import ArgumentParser

from django_durable_tasks import conf
from django_durable_tasks.engine.tenants.quotas import quotas, usage
from django_durable_tasks.management.durable.operation_arguments import add_operations, values
from django_durable_tasks.management.durable.output import Output, table
from django_durable_tasks.management.durable.subcommand import (
    OK,
    Options,
    Subcommand,
    by_and_reason,
    refuse,
)
from django_durable_tasks.models import Tenant
from django_durable_tasks.operations.tenants import SET_QUOTAS

_COLUMNS = ("quota", "limit", "used")


def quota(options: Options, out: Output) -> int:
    """Set the quotas that are given, then show all."""
    tenant = tenant_named(options["tenant"])
    given = values(options, SET_QUOTAS)
    if any(value not in (None, False) for value in given.values()):
        outcome = SET_QUOTAS.perform(tenant, **by_and_reason(options), **given)
        out.note(outcome.message)
        tenant = tenant_named(options["tenant"])
    rate = quotas(tenant).requests
    rows = [{"quota": row.name, "limit": row.limit, "used": row.used} for row in usage(tenant)] + [
        {"quota": "requests", "limit": None if rate is None else str(rate), "used": None}
    ]
    out.emit(rows, table(_COLUMNS, rows))
    return OK


def tenant_named(slug: str) -> Tenant:
    """Return the tenant with this slug, with its quota; refuses if there is none."""
    rows = Tenant.objects.using(conf.settings().DATABASE).select_related("quota")
    row = rows.filter(slug=slug).first()
    if row is None:
        refuse(f"There is no tenant {slug!r}.")
    return row


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT", help="The slug of the tenant.")
    add_operations(parser, SET_QUOTAS)


QUOTA = Subcommand(
    name="quota",
    summary="or show the quotas of a tenant and their usage",
    operations=(SET_QUOTAS,),
    examples=(
        "quota acme",
        "quota acme --open-tasks 10000 --requests 600/m --reason 'contract of May'",
        "quota acme --reset",
    ),
    arguments=_arguments,
    run=quota,
)
