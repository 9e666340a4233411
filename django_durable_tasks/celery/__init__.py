"""Celery carries: the only package that knows Celery and Kombu."""
