"""An overview with two buttons; everything else is in the admin."""

from datetime import timedelta

from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from billing import actions
from billing.models import Event, Invoice, Subscription
from django_durable_tasks.models import Task


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    """Show due subscriptions, open invoices, and the tasks per status."""
    context = {
        "subscriptions": Subscription.objects.due(timezone.now()).select_related(
            "customer", "plan"
        )[:10],
        "events": Event.objects.filter(starts_at__gt=timezone.now()).order_by("starts_at")[:10],
        "invoices": Invoice.objects.order_by().values("state").annotate(number=Count("pk")),
        "tasks": Task.objects.order_by().values("status").annotate(number=Count("pk")),
    }
    return render(request, "billing/overview.html", context)


@require_POST
def renew(request: HttpRequest, pk: int) -> HttpResponse:
    """Renew a subscription now."""
    actions.renew(get_object_or_404(Subscription, pk=pk))
    return redirect("overview")


@require_POST
def move_event(request: HttpRequest, pk: int) -> HttpResponse:
    """Postpone an event by a day."""
    event = get_object_or_404(Event, pk=pk)
    actions.move_event(event, event.starts_at + timedelta(days=1))
    return redirect("overview")
