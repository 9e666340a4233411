"""``staff``: lists which tenants each staff user sees, and changes it."""

from __future__ import annotations

from argparse import ArgumentParser

from django_durable_tasks.engine.tenants.staff import assignments, unlimited_users
from django_durable_tasks.management.durable.operation_arguments import add_operations, values
from django_durable_tasks.management.durable.output import Output, table
from django_durable_tasks.management.durable.quota_actions import tenant_named
from django_durable_tasks.management.durable.subcommand import (
    OK,
    REFUSED,
    Options,
    Subcommand,
    by_and_reason,
    refuse,
)
from django_durable_tasks.operations.tenants import ASSIGN_STAFF, UNASSIGN_STAFF

_COLUMNS = ("user", "tenant", "assigned_by", "reason")
_SHOWN = 1_000


def staff(options: Options, out: Output) -> int:
    """List the assignments and the users who see all tenants, or change an assignment."""
    if options["action"] == "list":
        return _list(out)
    if not options["tenant"] or not options["username"]:
        refuse("Give --tenant and --username.")
    operation = ASSIGN_STAFF if options["action"] == "assign" else UNASSIGN_STAFF
    outcome = operation.perform(
        tenant_named(options["tenant"]), **by_and_reason(options), **values(options, operation)
    )
    out.note(outcome.message)
    return OK if outcome.changed else REFUSED


def _list(out: Output) -> int:
    found = assignments().select_related("tenant").order_by("username", "tenant_id")[:_SHOWN]
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
        for user in unlimited_users(_SHOWN)
    ]
    out.emit(rows, table(_COLUMNS, rows, "there are no staff users"))
    return OK


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "assign", "unassign"), help="What to do.")
    parser.add_argument("--tenant", metavar="TENANT", help="The slug of the tenant.")
    parser.add_argument("--username", metavar="USER", help="The name of the staff user.")
    add_operations(parser, ASSIGN_STAFF, UNASSIGN_STAFF, without={"username"})


STAFF = Subcommand(
    name="staff",
    summary="or list the tenants that staff users see",
    operations=(ASSIGN_STAFF, UNASSIGN_STAFF),
    examples=(
        "staff list",
        "staff assign --tenant acme --username ann --reason 'support of acme'",
        "staff unassign --tenant acme --username ann",
        "staff unassign --tenant acme --username ann --all-tenants",
    ),
    arguments=_arguments,
    run=staff,
)
