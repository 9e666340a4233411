"""The crash-point explorer: a process can die at each statement that it sends to the database and
each message that it publishes.

``python -m tests.crash_points --scenario ending`` records a run of a scenario, so a new statement is a
new point. Then, for each point, a process is killed there, or loses its connection there, other
processes continue to the end, and the rows are checked against the guarantees.
"""
