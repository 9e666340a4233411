-- Unresolved edges and gates, in the order of COLUMNS in dependencies/edges.py.
COPY durable_tasks_dependency (task_id, depends_on_id, dependency_type, gate, on_upstream_failure, placed_by, comment)
FROM STDIN (FORMAT binary)
