"""The crash-point explorer: each thing that the engine tells its database or its broker is a point
to die at.

``python -m tests.crash_points --story ending`` records a run of a story, so that a new statement is
a new point; then, for each point, it lets a process be killed there, or lose its connection there,
lets others go on to the end, and asks the rows whether the promises were kept.
"""
