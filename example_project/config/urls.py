"""The URLs of the site: an overview, two buttons, and the admin."""

from billing import views
from django.contrib import admin
from django.urls import path

urlpatterns = [
    path("", views.overview, name="overview"),
    path("subscriptions/<int:pk>/renew/", views.renew, name="renew"),
    path("events/<int:pk>/move/", views.move_event, name="move-event"),
    path("admin/", admin.site.urls),
]
