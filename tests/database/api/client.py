"""A client of the API: one tenant with a key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.test import Client
from django.utils import timezone

from django_durable_tasks.contrib.api import access
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.models import Tenant

ROOT = "/api/v1"
ADD = "tests.project.tasks.add"
SETTINGS = {
    "API_TASKS": ["tests.project.tasks.*"],
    "API_QUEUES": ["*"],
    "QUOTAS": {"requests": None},
    "NOTIFICATION_EMAIL_ALLOW": ["*@example.com"],
}


def a_tenant(slug: str = "acme") -> Tenant:
    """Create a tenant."""
    found: Tenant = Tenant.objects.create(slug=slug, name=slug.title())
    return found


@dataclass(frozen=True, slots=True)
class ApiClient:
    """Sends JSON with the key of a tenant; ``key`` is empty for a client without one."""

    tenant: Tenant
    key: str

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send a request; names of headers are written with underscores."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key:
            given.setdefault("Authorization", f"Bearer {self.key}")
        content = body if isinstance(body, bytes) else b"" if body is None else _json(body)
        path = path if path.startswith(ROOT) else ROOT + path
        client = Client(raise_request_exception=False)
        if method in ("GET", "HEAD"):
            return client.generic(method, path, headers=given)
        return client.generic(method, path, content, content_type="application/json", headers=given)

    def get(self, path: str, **headers: str) -> Any:
        """Send a GET."""
        return self.send("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        """Send a POST."""
        return self.send("POST", path, body, **headers)

    def patch(self, path: str, body: Any, **headers: str) -> Any:
        """Send a PATCH."""
        return self.send("PATCH", path, body, **headers)

    def delete(self, path: str, body: Any = None, **headers: str) -> Any:
        """Send a DELETE."""
        return self.send("DELETE", path, body, **headers)


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def a_client(tenant: Tenant, *scopes: str) -> ApiClient:
    """Create a key with these scopes, by default all, and return its client."""
    name = f"test {timezone.now().timestamp()}"
    issued = access.create_key(tenant, name, scopes or tuple(ApiScope), now=timezone.now())
    return ApiClient(tenant, issued.text)


def call(left: int = 1, right: int = 2, **options: Any) -> dict[str, Any]:
    """Return the body that creates a task."""
    config = {"task": ADD, "args": [left], "kwargs": {"right": right}}
    return {"target_type": "CELERY_TASK", "target_config": config, **options}


def pointers(response: Any) -> list[str]:
    """Return the places that a problem names."""
    return [
        one.get("pointer") or one.get("parameter") or one.get("header")
        for one in response.json().get("errors", [])
    ]
