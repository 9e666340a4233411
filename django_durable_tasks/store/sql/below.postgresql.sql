-- The dependents of an ended task whose edges have no outcome yet, at most `limit`, and the unresolved events of its
-- ending.
-- For num_nonnulls() see resolve_endings.postgresql.sql.
SELECT child.unresolved_dependencies_count AS unresolved, child.queue,
       child.run_at <= clock_timestamp() AND child.expires_at IS NULL AND child.overlap_key IS NULL AS is_due,
       ARRAY(SELECT event.id FROM durable_tasks_ending_event AS event
              WHERE event.task_id = %(id)s AND NOT event.resolved) AS ending_events,
       child.name, child.tenant_id
  FROM durable_tasks_dependency AS edge
  JOIN durable_tasks_task AS child ON child.id = edge.task_id
 WHERE edge.depends_on_id = %(id)s AND edge.depends_on_id IS NOT NULL AND num_nonnulls(edge.resolved_at, edge.outcome) < 1
 LIMIT %(limit)s
