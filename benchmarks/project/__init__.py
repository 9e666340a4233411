"""The Django project in which the benchmarks of this package run."""

from benchmarks.project.celery import app as celery_app

__all__ = ["celery_app"]
