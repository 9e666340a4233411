-- A loose scan of the index of tasks that wait for a limit: one probe for each scope after `past`, at most `limit` of them.
WITH RECURSIVE scopes (scope, number) AS (
  SELECT min(waiting_for_limit), 1 FROM durable_tasks_task WHERE waiting_for_limit IS NOT NULL AND waiting_for_limit > %(past)s
  UNION ALL
  SELECT (SELECT min(task.waiting_for_limit) FROM durable_tasks_task AS task
           WHERE task.waiting_for_limit IS NOT NULL AND task.waiting_for_limit > scopes.scope), number + 1
    FROM scopes WHERE scopes.scope IS NOT NULL AND number < %(limit)s)
SELECT scope FROM scopes WHERE scope IS NOT NULL
