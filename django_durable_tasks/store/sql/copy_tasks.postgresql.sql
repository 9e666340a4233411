-- New tasks, in the order of COLUMNS in states/inserts.py. COPY evaluates no expression: every time is
-- given, so that all tasks of one COPY have the same.
COPY durable_tasks_task
     (id, args, kwargs, shard_key, limit_key,
      run_at, due_at, expires_at, idempotency_key, unique_key, open_unique_key, recurring_task_id, fire_time, overlap_key,
      step,
      tenant_id, name, queue, priority, options, status, created_at, updated_at, epoch, publish_count, max_attempts,
      max_crashes, on_orphan, expected_duration, time_zone, workflow_id, join_count, on_upstream_failure,
      unresolved_dependencies_count, has_dependents, weight, target_type, encryption_key, in_batch)
FROM STDIN (FORMAT binary)
