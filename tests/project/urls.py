"""The admin and the HTTP API."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("django_durable_tasks.contrib.api.urls")),
]
