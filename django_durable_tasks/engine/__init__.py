"""The engine acts: the stories of a task's life, each one transaction. It knows no Celery."""
