"""Notifies schedulers of tasks that were created or moved and are due soon."""
