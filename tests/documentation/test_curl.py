"""Every curl command of a page is answered by the API."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from django_durable_tasks.contrib.api import access
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.models import RecurringTask, SchedulerLease, Tenant
from tests.documentation.pages import blocks, name_of, pages
from tests.factories import a_task
from tests.project.tasks import noop


@dataclass(slots=True)
class CurlCommand:
    """A request as a command of curl."""

    method: str = "GET"
    address: str = ""
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def _commands(page: Path) -> list[CurlCommand]:
    texts = [block.text for block in blocks(page) if block.info == "sh curl"]
    return [_parsed(line) for text in texts for line in _lines(text)]


def _lines(text: str) -> list[str]:
    """Split a block into commands; a JSON body may have several lines."""
    parts = re.split(r"(?m)^(?=curl )", text)
    return [part.replace("\\\n", " ") for part in parts if part.strip()]


def _parsed(line: str) -> CurlCommand:
    words, found = iter(shlex.split(line)[1:]), CurlCommand()
    for word in words:
        if word == "-X":
            found.method = next(words)
        elif word == "-H":
            name, _colon, value = next(words).partition(": ")
            found.headers[name] = value
        elif word == "-d":
            found.body = next(words)
        else:
            assert word.startswith("https://"), word
            found.address = word
    return found


WITH_CURL = [page for page in pages() if _commands(page)]


@pytest.mark.django_db
@pytest.mark.parametrize("page", WITH_CURL, ids=name_of)
def test_every_curl_command_of_a_page_succeeds(page: Path, settings: Any) -> None:
    settings.DURABLE_TASKS = {"API_TASKS": ["tests.project.tasks.*"]}
    tenant = Tenant.objects.get(pk=1)
    key = access.create_key(tenant, "docs", tuple(ApiScope), now=timezone.now()).text
    task = str(a_task().pk)
    later = (timezone.now() + timedelta(days=30)).isoformat()
    schedule = RecurringTask.objects.upsert(name="hourly", task=noop, interval=3600)
    SchedulerLease.objects.update_or_create(
        name="leader", defaults={"expires_at": timezone.now() + timedelta(hours=1)}
    )
    for command in _commands(page):
        client = Client()
        client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {key}"
        tag = client.get(f"/api/v1/tasks/{task}").headers["ETag"]
        known = {
            "$KEY": key,
            "$TASK": task,
            "$ETAG": tag,
            "$RUN_AT": later,
            "$SCHEDULE": str(schedule.pk),
        }
        response = _send(command, known)
        assert response.status_code < 400, (command, response.content)
        assert json.loads(response.content)


def _send(command: CurlCommand, known: dict[str, str]) -> Any:
    def filled(text: str) -> str:
        for name, value in known.items():
            text = text.replace(name, value)
        # "$result" marks references in the JSON of a body.
        assert "$" not in text.replace('"$result"', ""), text
        return text

    address = urlsplit(filled(command.address))
    headers = {name: filled(value) for name, value in command.headers.items()}
    return Client().generic(
        command.method,
        f"{address.path}?{address.query}",
        filled(command.body),
        content_type=headers.pop("Content-Type", "application/octet-stream"),
        headers=headers,
    )


def test_a_page_shows_commands_of_curl() -> None:
    assert WITH_CURL
