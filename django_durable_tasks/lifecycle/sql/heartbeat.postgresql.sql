UPDATE durable_tasks_task AS task
   SET lease_until = clock_timestamp() + beat.lease * interval '1 second', progress = COALESCE(beat.progress, task.progress)
  FROM unnest(%(ids)s::uuid[], %(epochs)s::bigint[], %(runs)s::uuid[], %(leases)s::float8[], %(progress)s::jsonb[])
       AS beat (id, epoch, run_id, lease, progress)
 WHERE task.id = beat.id AND task.epoch = beat.epoch AND task.run_id = beat.run_id AND task.status = 'RUNNING'
RETURNING task.run_id, task.cancel_requested_at IS NOT NULL
