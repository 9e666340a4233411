"""An explicit-state model of one task: every order of the events of its processes, messages and
failures.
"""
