"""The functions of the recurring jobs; billing/schedules.py declares when they run.

A job may start twice for one fire time and may start late. Therefore each one uses its fire time
instead of the clock, and writes under a key that makes a second start harmless.
"""

from billing.jobs import closing, figures, housekeeping, letters, money

__all__ = ["closing", "figures", "housekeeping", "letters", "money"]
