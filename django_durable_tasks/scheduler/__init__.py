"""The threads of a scheduler process: dispatch, leadership, maintenance jobs and schedules."""
