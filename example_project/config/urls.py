"""The URLs of the site: an overview, two buttons, the admin, and the HTTP API."""

from billing import views
from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", views.overview, name="overview"),
    path("subscriptions/<int:pk>/renew/", views.renew, name="renew"),
    path("events/<int:pk>/move/", views.move_event, name="move-event"),
    path("admin/", admin.site.urls),
    path("api/v1/", include("django_durable_tasks.contrib.api.urls")),
]
