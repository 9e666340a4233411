SELECT endpoint.id, endpoint.open_until
  FROM durable_tasks_task AS task
  JOIN durable_tasks_endpoint AS endpoint ON endpoint.key = task.limit_key
 WHERE task.id = %(id)s AND endpoint.open_until IS NOT NULL
