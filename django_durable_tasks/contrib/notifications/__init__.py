"""Notification settings, the delivery of their messages, alerts, and the watchdog."""
