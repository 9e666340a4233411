"""Rules decide: pure functions and values. No Django, no Celery, no queries, no clock."""
