-- A loose scan of the index of parked rows: one probe for each scope, at most so many.
WITH RECURSIVE scopes (scope, number) AS (
  SELECT min(held_for), 1 FROM durable_tasks_task WHERE held_for IS NOT NULL AND held_for > %(past)s
  UNION ALL
  SELECT (SELECT min(task.held_for) FROM durable_tasks_task AS task
           WHERE task.held_for IS NOT NULL AND task.held_for > scopes.scope), number + 1
    FROM scopes WHERE scopes.scope IS NOT NULL AND number < %(limit)s)
SELECT scope FROM scopes WHERE scope IS NOT NULL
