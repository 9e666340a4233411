"""The subcommands of ``manage.py durable``."""
