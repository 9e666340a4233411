"""The closing of a month: a workflow that a recurring job starts once for each fire time.

    extract ─┬─ a statement for each customer ─┬─ reports: revenue by plan ── total ── summary
             └─ ... as many as there are       ─┘

The number of customers is known only when `extract` runs, so it adds their statements to its own
workflow; tasks that wait for it then wait for the statements too. The reports are a sub-workflow.
Each task writes under a unique key.
"""

from datetime import timedelta
from typing import Any

from django.db.models import Sum

from billing import mails
from billing.jobs.when import fire_day, month_before
from billing.models import Customer, Figure, Payment, Plan, Statement
from django_durable_tasks import Workflow, durable_task

MOST = 12
"""The maximum number of statements of one closing, to keep the demo short."""


@durable_task(bind=True)
def close_month(self: Any) -> Workflow:
    """Start the closing of the month before the fire time, in the transaction of this job's
    success.
    """
    month = f"{month_before(fire_day(self)):%Y-%m}"
    closing = Workflow("close-month", deadline=timedelta(hours=6), on_failure=report_unclosed)
    extracted = closing.add(extract, month, step="extract")
    reported = closing.add_workflow(reports(month), after=extracted, step="reports")
    closing.add(
        send_summary,
        month,
        extracted.result["statements"],
        reported.result["total"],
        after=reported,
    )
    return closing


def reports(month: str) -> Workflow:
    """Return the workflow of the reports: one for each plan, and their total."""
    found = Workflow("reports")
    plans = [
        found.add(sum_revenue, plan.pk, month, step=f"revenue of {plan}")
        for plan in Plan.objects.order_by("pk")
    ]
    found.add(sum_up, month, [plan.result for plan in plans], after=plans, step="total")
    return found


@durable_task(bind=True)
def extract(self: Any, month: str) -> dict[str, int]:
    """Find the customers who paid, and add a statement for each to the workflow. The statements are
    created with this task's success, or not at all.
    """
    payers = (
        Customer.objects.filter(subscriptions__invoices__payments__isnull=False)
        .distinct()
        .order_by("pk")
    )
    customers = list(payers.values_list("pk", flat=True)[:MOST])
    for customer_id in customers:
        self.durable.workflow.add(
            write_statement, customer_id, month, step=f"statement {customer_id}"
        )
    return {"statements": len(customers)}


@durable_task
def write_statement(customer_id: int, month: str) -> int:
    """Write the total of a customer's payments. The constraint on (customer, month) makes a second
    start harmless.
    """
    amount = _paid(invoice__subscription__customer=customer_id)
    Statement.objects.update_or_create(
        customer_id=customer_id, month=month, defaults={"amount": amount}
    )
    return amount


@durable_task
def sum_revenue(plan_id: int, month: str) -> int:
    """Record the total of the payments for a plan."""
    amount = _paid(invoice__subscription__plan=plan_id)
    Figure.objects.update_or_create(
        name=f"revenue of plan {plan_id}", period=month, defaults={"value": amount}
    )
    return amount


@durable_task
def sum_up(month: str, amounts: list[int]) -> int:
    """Record the total of all plans; the amounts are the results of other tasks, resolved when this
    one starts.
    """
    Figure.objects.update_or_create(
        name="revenue of all plans", period=month, defaults={"value": sum(amounts)}
    )
    return sum(amounts)


@durable_task(bind=True)
def send_summary(self: Any, month: str, statements: int, total: int) -> None:
    """Notify the office that the month is closed."""
    text = f"{statements} statements, {total / 100:.2f} in all."
    mails.send_to_office(f"{month} is closed", text, key=self.durable.idempotency_key)


@durable_task(bind=True)
def report_unclosed(self: Any, run_id: str) -> None:
    """Notify the office that a closing failed, or was not done by its deadline."""
    mails.send_to_office(
        "A month could not be closed",
        f"See workflow run {run_id}.",
        key=self.durable.idempotency_key,
    )


def _paid(**which: Any) -> int:
    return Payment.objects.filter(**which).aggregate(sum=Sum("invoice__amount"))["sum"] or 0
