"""The Django project that the benchmarks of ours run in."""

from benchmarks.project.celery import app as celery_app

__all__ = ["celery_app"]
