"""The smallest Django project that uses the package."""

from tests.project.celery import app as celery_app

__all__ = ["celery_app"]
