"""An explicit-state model of one task row: every order in which its processes, messages and
failures may meet.
"""
