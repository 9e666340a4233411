"""The chaos suite: load on a cluster, faults selected by a seed, and invariants of the recorded
history.
"""
