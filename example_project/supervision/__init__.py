"""Starts, monitors, kills and stops the platform's processes, for `manage.py demo` and `manage.py
run`.
"""
