"""Domain rules as pure functions and values. They use no Django, no Celery, no queries and no
clock.
"""
