"""The verbs of ``manage.py durable``: each asks the models and calls one verb of the lifecycle."""
