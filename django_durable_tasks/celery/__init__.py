"""Publishes and executes tasks with Celery and Kombu."""
