-- Tasks of different calls, each with its own times. The caller has checked that their keys are free.
INSERT INTO durable_tasks_task
       (id, tenant_id, name, queue, priority, args, kwargs, options, status, run_at, due_at, expires_at, epoch,
        publish_count, max_attempts, max_crashes, on_orphan, expected_duration, idempotency_key, unique_key,
        open_unique_key, time_zone, recurring_task_id, fire_time, overlap_key, shard_key, workflow_id, step, join_count,
        on_upstream_failure, unresolved_dependencies_count, has_dependents, limit_key, weight, target_type,
        encryption_key, in_batch)
SELECT created.id, tenant_id, name, queue, priority, args::jsonb, kwargs::jsonb, options::jsonb, status, start.moment,
       CASE WHEN status <> 'BLOCKED'
            THEN COALESCE(due_at, start.moment + COALESCE(wait, 0) * interval '1 second') END,
       COALESCE(expires_at, start.moment + expires_in * interval '1 second'),
       epoch, publish_count, max_attempts, max_crashes, on_orphan,
       expected_duration * interval '1 second', idempotency_key, unique_key, unique_key, COALESCE(time_zone, ''),
       recurring_task_id, fire_time, overlap_key, shard_key, workflow_id, step, join_count,
       COALESCE(on_upstream_failure, 'SKIP'), COALESCE(unresolved, 0), COALESCE(has_dependents, false), limit_key,
       COALESCE(weight, 1), target_type, encryption_key, COALESCE(in_batch, false)
  FROM json_to_recordset(%(rows)s::json)
       AS created (id uuid, tenant_id bigint, name text, queue text, priority smallint, args text, kwargs text,
                options text, status text, run_at timestamptz, due_at timestamptz, expires_at timestamptz,
                epoch bigint, publish_count integer, max_attempts integer, max_crashes integer, on_orphan text,
                expected_duration float8, wait float8, expires_in float8, idempotency_key text,
                unique_key text, time_zone text, recurring_task_id uuid, fire_time timestamptz, overlap_key text, shard_key smallint,
                workflow_id uuid, step text, join_count integer, on_upstream_failure text, unresolved integer,
                has_dependents boolean, limit_key text, weight smallint, target_type text,
                encryption_key text, in_batch boolean)
 CROSS JOIN LATERAL (SELECT COALESCE(created.run_at, statement_timestamp()) AS moment) AS start
