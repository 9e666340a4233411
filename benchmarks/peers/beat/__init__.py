"""django-celery-beat in its own environment: its settings, its app, and the program that fills its
tables.
"""
