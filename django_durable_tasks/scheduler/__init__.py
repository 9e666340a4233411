"""The scheduler drives: it dispatches due rows, and the leader among several sweeps. No decision is taken here."""
