"""The app that beat runs: ``celery -A benchmarks.peers.beat.app beat``."""

import os

from celery import Celery

app = Celery("beat", broker=os.environ["BENCHMARK_BROKER"])
app.conf.update(
    beat_scheduler="django_celery_beat.schedulers:DatabaseScheduler",
    timezone="UTC",
    task_default_queue=os.environ["BENCHMARK_QUEUE"],
)
