INSERT INTO durable_tasks_occurrence
       (recurring_task_id, tenant_id, fire_time, last_fire_time, count, count_is_exact, unique_fire_time, effective_at,
        outcome, reason, task_id, blocked_by, request_id, term)
SELECT *
  FROM json_to_recordset(%(rows)s::json)
       AS line (recurring_task_id uuid, tenant_id bigint, fire_time timestamptz, last_fire_time timestamptz,
                count bigint, count_is_exact boolean, unique_fire_time timestamptz, effective_at timestamptz,
                outcome text, reason text, task_id uuid, blocked_by uuid, request_id text, term bigint)
    ON CONFLICT DO NOTHING
RETURNING task_id
