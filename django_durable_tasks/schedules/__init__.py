"""Schedules: timetables, calendars, misfires, the ledger and the creation of their tasks."""
