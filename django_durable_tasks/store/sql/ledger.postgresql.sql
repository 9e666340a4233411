INSERT INTO durable_tasks_occurrence
       (recurring_task_id, tenant_id, fire_time, last_fire_time, count, count_is_exact, unique_fire_time, effective_at,
        outcome, reason, task_id, blocked_by, request_id, term)
SELECT *
  FROM unnest(%(recurring_task_id)s::uuid[], %(tenant_id)s::bigint[], %(fire_time)s::timestamptz[],
              %(last_fire_time)s::timestamptz[], %(count)s::bigint[], %(count_is_exact)s::boolean[],
              %(unique_fire_time)s::timestamptz[], %(effective_at)s::timestamptz[], %(outcome)s::text[],
              %(reason)s::text[], %(task_id)s::uuid[], %(blocked_by)s::uuid[], %(request_id)s::text[],
              %(term)s::bigint[])
    ON CONFLICT DO NOTHING
RETURNING task_id
