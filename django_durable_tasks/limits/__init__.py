"""Concurrency and rate limits, back-pressure, and overlapping runs."""
