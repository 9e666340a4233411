"""Open days, holidays and calendar files."""
