"""Timetables: pure values with the methods next, previous and count."""
