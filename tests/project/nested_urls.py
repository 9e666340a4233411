"""The API below another namespace, as a project with several APIs includes it."""

from django.urls import include, path

_nested = ([path("api/v1/", include("django_durable_tasks.contrib.api.urls"))], "jobs")
urlpatterns = [path("api/v1/jobs/", include(_nested, namespace="jobs"))]
