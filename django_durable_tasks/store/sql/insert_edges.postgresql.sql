-- Unresolved edges and gates, in one statement.
INSERT INTO durable_tasks_dependency
       (task_id, depends_on_id, dependency_type, gate, on_upstream_failure, placed_by, comment)
SELECT task_id, depends_on_id, dependency_type, gate, on_upstream_failure, placed_by, comment
  FROM json_to_recordset(%(rows)s::json)
       AS created (task_id uuid, depends_on_id uuid, dependency_type text, gate text, on_upstream_failure text,
                placed_by text, comment text)
