"""The state machine as data, and the only writers of Task.status."""
