"""The admin of the platform's tables; tasks have their own pages."""

from django.contrib import admin

from billing.models import (
    Customer,
    Event,
    ExchangeRate,
    Figure,
    Finding,
    GatewayCharge,
    Invoice,
    Payment,
    Plan,
    Post,
    Statement,
    Subscription,
    UsageReport,
)

admin.site.register([Plan, GatewayCharge])


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    """Customers."""

    list_display = ("name", "email", "card")
    list_filter = ("card",)
    search_fields = ("name", "email")


@admin.register(Subscription)
class SubscriptionAdmin(admin.ModelAdmin):
    """Subscriptions."""

    list_display = ("customer", "plan", "period", "renews_at")
    list_filter = ("plan",)
    list_select_related = ("customer", "plan")
    raw_id_fields = ("customer",)


@admin.register(Invoice)
class InvoiceAdmin(admin.ModelAdmin):
    """Invoices."""

    list_display = ("id", "subscription", "period", "amount", "state", "issued_at")
    list_filter = ("state",)
    list_select_related = ("subscription__customer", "subscription__plan")
    raw_id_fields = ("subscription",)


@admin.register(Payment)
class PaymentAdmin(admin.ModelAdmin):
    """Payments."""

    list_display = ("reference", "invoice", "idempotency_key", "paid_at")
    raw_id_fields = ("invoice",)


@admin.register(UsageReport)
class UsageReportAdmin(admin.ModelAdmin):
    """Usage reports."""

    list_display = ("plan", "month", "units", "built_at")


@admin.register(Event)
class EventAdmin(admin.ModelAdmin):
    """Events."""

    list_display = ("title", "host", "starts_at")
    list_select_related = ("host",)
    raw_id_fields = ("host",)


@admin.register(Post)
class PostAdmin(admin.ModelAdmin):
    """Posts."""

    list_display = ("title", "publish_at", "published_at")


@admin.register(Statement)
class StatementAdmin(admin.ModelAdmin):
    """Statements."""

    list_display = ("customer", "month", "amount")
    list_select_related = ("customer",)
    raw_id_fields = ("customer",)


@admin.register(ExchangeRate)
class ExchangeRateAdmin(admin.ModelAdmin):
    """Exchange rates."""

    list_display = ("currency", "day", "rate")
    list_filter = ("currency",)


@admin.register(Figure)
class FigureAdmin(admin.ModelAdmin):
    """Figures."""

    list_display = ("name", "period", "value", "taken_at")
    list_filter = ("name",)


@admin.register(Finding)
class FindingAdmin(admin.ModelAdmin):
    """Findings."""

    list_display = ("check_name", "subject", "found_at")
    list_filter = ("check_name",)
