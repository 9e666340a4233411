"""Performs the operations on tasks, each in one transaction. Imports no Celery."""
