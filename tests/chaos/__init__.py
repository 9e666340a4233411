"""The chaos suite: a load, a fleet, faults from a seed, and what must hold of the history all the
same.
"""
