"""How fast we are, beside others, on one machine in one run: ``python -m benchmarks --help``."""
