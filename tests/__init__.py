"""The tests, and `python -m tests`, which finds the servers and runs all of them."""
