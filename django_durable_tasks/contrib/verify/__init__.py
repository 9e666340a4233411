"""The checks and repairs of ``durable verify``."""
