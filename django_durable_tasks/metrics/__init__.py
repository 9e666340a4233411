"""Counts per minute, their exposition for Prometheus, and spans of OpenTelemetry."""
