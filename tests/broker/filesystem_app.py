"""The smallest Celery application over the filesystem transport: no Django, no result backend."""

import os
from pathlib import Path

from celery import Celery

from django_durable_tasks.celery.filesystem import register
from tests.waiting import until

register()
app = Celery("filesystem_app", broker=os.environ["FILESYSTEM_BROKER"])
app.conf.update(
    task_ignore_result=True, worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True
)


@app.task(name="note")
def note(number: int) -> None:
    """Append the number as a line."""
    file = os.open(os.environ["FILESYSTEM_NOTEBOOK"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(file, f"{number}\n".encode())
    os.close(file)


@app.task(name="hold")
def hold(number: int, released: str) -> None:
    """Occupy a child process until the file `released` exists, then append the number."""
    until(Path(released).exists, within=60)
    note(number)
