"""Audit entries."""
