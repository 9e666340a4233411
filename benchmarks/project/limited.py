"""What a limited task of the benchmarks does."""

LIMIT = 4
"""Its ``max_concurrency``."""
PAUSE = 0.05
"""How long it runs, in seconds."""
