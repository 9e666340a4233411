"""The addresses of the API: ``path("api/v1/", include("django_durable_tasks.api.urls"))``."""

from django.urls import path, re_path

from django_durable_tasks.api.views.problem_pages import ProblemEndpoint, UnknownEndpoint
from django_durable_tasks.api.views.task_operations import ACTIONS, endpoint_of
from django_durable_tasks.api.views.tasks import ExecutionsEndpoint, TaskEndpoint, TasksEndpoint

app_name = "durable-api"
urlpatterns = [
    path("tasks", TasksEndpoint.as_view(), name="tasks"),
    path("tasks/<uuid:task_id>", TaskEndpoint.as_view(), name="task"),
    path("tasks/<uuid:task_id>/executions", ExecutionsEndpoint.as_view(), name="task-executions"),
    *[
        path(
            f"tasks/<uuid:task_id>/{action.path}",
            endpoint_of(action).as_view(),
            name=f"task-{action.path}",
        )
        for action in ACTIONS
    ],
    path("problems/<slug:code>", ProblemEndpoint.as_view(), name="problem"),
    re_path("^.*$", UnknownEndpoint.as_view(), name="unknown"),
]
