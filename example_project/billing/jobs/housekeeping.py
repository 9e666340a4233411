"""Jobs that delete old data and complete unfinished work."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db.models import Model
from django.utils import timezone

from billing.models import Customer, Event, ExchangeRate, Figure, Finding, Invoice, Post
from django_durable_tasks import durable_task
from django_durable_tasks.models import Task

OLD: dict[str, tuple[type[Model], str]] = {
    "events": (Event, "starts_at"),
    "figures": (Figure, "taken_at"),
    "findings": (Finding, "found_at"),
    "posts": (Post, "published_at"),
    "rates": (ExchangeRate, "day"),
}


@durable_task
def forget(what: str, days: int, most: int = 1_000) -> int:
    """Delete rows older than ``days``, in batches."""
    model, column = OLD[what]
    old = model._default_manager.filter(**{f"{column}__lt": timezone.now() - timedelta(days=days)})
    numbers = list(old.order_by("pk").values_list("pk", flat=True)[:most])
    return model._default_manager.filter(pk__in=numbers).delete()[0]


@durable_task
def forget_sessions() -> None:
    """Delete sessions that have ended."""
    call_command("clearsessions")


@durable_task
def forget_mails(days: int) -> int:
    """Delete the files of mails that were sent long ago."""
    folder, before = Path(settings.MAIL_FOLDER), time.time() - days * 86_400
    old = (
        [file for file in folder.glob("*.log") if file.stat().st_mtime < before]
        if folder.is_dir()
        else []
    )
    for file in old:
        file.unlink(missing_ok=True)
    return len(old)


@durable_task
def publish_forgotten() -> int:
    """Publish posts whose task no longer exists, an hour after their time."""
    late = Post.objects.filter(
        published_at=None, publish_at__lt=timezone.now() - timedelta(hours=1)
    )
    posts = list(late.order_by("publish_at")[:100])
    for post in posts:
        post.publish()
    return len(posts)


@durable_task(timeout=60)
def rehearse_restore() -> dict[str, int]:
    """Count the rows that a restored copy would have to contain."""
    return {
        model.__name__: model._default_manager.count() for model in (Customer, Invoice, Post, Event)
    }


@durable_task(bind=True, timeout=600)
def verify_archive(self: Any, pages: int = 20) -> int:
    """Read the paid invoices page by page; stops on request of an operator or of the next run."""
    seen = 0
    for page in range(pages):
        self.durable.check()
        seen += len(
            Invoice.objects.filter(state=Invoice.State.PAID).order_by("pk")[
                page * 500 : page * 500 + 500
            ]
        )
        self.durable.progress(page + 1, pages, "pages of invoices")
    return seen


@durable_task
def look_at_queue(most: int = 10_000) -> int:
    """Record a finding if too many tasks wait."""
    waiting = Task.objects.filter(status="PENDING").count()
    if waiting > most:
        Finding.objects.get_or_create(check_name="too many tasks wait", subject=f"more than {most}")
    return waiting


@durable_task
def try_out(name: str) -> str:
    """Replace the work of a schedule that is only tested."""
    return name
