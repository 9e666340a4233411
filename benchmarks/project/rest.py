"""A plain create of Django REST framework, to compare the HTTP API with, and the URLs of both."""

from __future__ import annotations

from typing import Any

from django.db import connection, models
from django.urls import include, path
from rest_framework.generics import CreateAPIView
from rest_framework.serializers import ModelSerializer


class Order(models.Model):
    """About as much data as a task has."""

    target_config = models.JSONField()
    key = models.CharField(max_length=200, unique=True)
    queue = models.CharField(max_length=200, db_index=True)
    priority = models.IntegerField(default=0)
    run_at = models.DateTimeField(auto_now_add=True, db_index=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "project"

    def __str__(self) -> str:
        return self.key


class OrderSerializer(ModelSerializer[Order]):
    """All fields of an order."""

    class Meta:
        model = Order
        fields = "__all__"


class Orders(CreateAPIView[Order]):
    """Creates an order; no authentication, idempotency or limits."""

    authentication_classes = ()
    permission_classes = ()
    queryset = Order._default_manager.all()
    serializer_class = OrderSerializer


def create_table() -> None:
    """Create the table of orders if it is missing."""
    if Order._meta.db_table not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Order)


def order(number: int, run: str) -> dict[str, Any]:
    """Return the body that creates an order. ``run`` differs for each run in one database."""
    return {"target_config": {"args": [number]}, "key": f"{run}-{number}", "queue": "orders"}


urlpatterns = [
    path("api/v1/", include("django_durable_tasks.contrib.api.urls")),
    path("orders", Orders.as_view()),
]
