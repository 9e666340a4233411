"""Notifications: settings, capture of events, deliveries, alerts and the watchdog."""
